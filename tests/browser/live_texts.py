"""Two hundred texts with what tokenizers stumble over: accents, scripts, emoji, punctuation."""

import random

WRITTEN = """\
the train left the station on time
Don't stop! It's 3.14, isn't it? Yes—no… "quoted" ‘so’ (and) [that] {too}.
naïve café résumé Zoë façade coöperate Ångström señor
NAÏVE CAFÉ ÉCOLE ÜBER STRASSE straße ĲSSEL ﬁne ﬂow Ǆ ß ẞ
e\u0301te\u0301 and été, a\u0308\u0323 and ạ̈, \u0301alone
The U.S.A. e.g. a.m. $5.00 50% #tag @name a_b a-b a/b C++ C# .NET 1,000,000 v1.2.3
我们坐在河岸上。银行关门了 银.行 a.银 カ.タ é.é
東京タワーは高い です 日本語とEnglish混ぜる
한국어 문장입니다 안녕하세요
Привет, мир! Ёлка ёж Їжак
Γειά σου Κόσμε ΣΊΣΥΦΟΣ ὈΔΥΣΣΕΎΣ
مرحبا بالعالم، كيف حالك؟
שלום עולם
नमस्ते दुनिया हिन्दी
สวัสดีชาวโลก
வணக்கம் உலகம்
ქართული ენა
Tiếng Việt có nhiều dấu: ằ ẵ ộ ự
👍 thumbs 👍🏽 family 👩‍👩‍👧 flag 🇩🇪 heart ❤️ keycap 1️⃣
😀😀😀 no blanks😀between
unbelievableness antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
a [MASK] b [SEP] c [CLS] d [PAD] e [UNK] f [mask] [ MASK ]
[MASK]
x
.
...
a\tb\nc\r\nd \u00a0 e\u2003f\u200bg\u00adh\ufeffi
zero\u0000width\u0007bell\ufffdreplaced
\u2028line\u2029paragraph\u0085next
±×÷≠≤≥∞∑√∂ ∀x∈S: x≥0 → y ⇒ z
½ ¼ ² ³ ₂ ™ © ® ° µ Ω Å ℃ ℡ Ⅷ
′″ “” «» ‹› ¿¡ ‽ ※ § ¶ † ‡ • · – — ―
、。「」『』【】〜・ ￥ Ｆｕｌｌｗｉｄｔｈ １２３ ！？
https://example.org/a?b=c&d=e#f me@example.org
print("hello"); x = [1, 2, 3]; if (a && b) { return !c; }
ALL CAPS AND CamelCase and snake_case and kebab-case
1st 2nd 3rd 4th 1990s '90s o'clock rock'n'roll y'all'd've
Mr. O'Neill-Smith's dog—the one he'd bought in '99—barked.
İstanbul ISPARTA ıssız DİYARBAKIR
Dž ǅ ŉ ǰ ΐ ΰ և ẖ ẗ ẘ ẙ ẚ
ﷺ ﬃ ﬅ ㌔ ㍿ ㎏ ㈱
𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝒎𝒂𝒕𝒉 𝟏𝟐𝟑
\U00020000\U0002a6d6 \u3400\u4dbf \uf900 \U0002f800
カタカナ ひらがな ｶﾀｶﾅ ー ゛ ゜
ᄒ\u1161\u11ab jamo 각 \ud55c
ไทย ລາວ ខ្មែរ မြန်မာ བོད
᠀ᠠ ⴰⵎⴰⵣⵉⵖ ᚠᛇᚻ ᏣᎳᎩ
\u0300\u0301\u0302 marks first
a\u034fb c\u180ed e\u2060f g\u061ch
ab\u0e33 c\u0eb3d
{letters100}
{letters101}
{letters100} and {letters101}!
"""
SCRIPTS = [
    (0x21, 0x7e), (0xa1, 0xff), (0x100, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea),
    (0x621, 0x64a), (0x905, 0x939), (0xe01, 0xe2e), (0x1e00, 0x1eff), (0x2010, 0x2027),
    (0x20a0, 0x20bf), (0x2190, 0x21ff), (0x2200, 0x22ff), (0x3041, 0x3096), (0x30a1, 0x30fa),
    (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0x1f600, 0x1f64f), (0x1f300, 0x1f3fa),
]  # fmt: skip
WORDS = """\
the of and to in is was he she it train station river bank phones apple cat dog saw left
sat on time because suitcase trophy opened account money flows quickly unfathomable colourless
green ideas sleep furiously attention softmax query key value transformer
"""


def texts():
    """Return the texts, the same each time."""
    letters = {"letters100": "ab" * 50, "letters101": "ab" * 50 + "c"}
    found = [line for line in WRITTEN.split("\n") if line]
    for name, run in letters.items():
        found = [line.replace(f"{{{name}}}", run) for line in found]
    rng, plain = random.Random(0), WORDS.split()
    while len(found) < 200:
        words = [rng.choice(plain) for _ in range(rng.randint(1, 12))]
        for _ in range(rng.randint(1, 4)):
            low, high = rng.choice(SCRIPTS)
            odd = "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5)))
            words.insert(rng.randint(0, len(words)), odd)
        found.append(rng.choice([" ", " ", ", ", "-", "  "]).join(words))
    return found
