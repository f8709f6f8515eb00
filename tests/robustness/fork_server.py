"""Starts real commands at once: a process that has imported all, and forks one for each.

A fork is a process of its own, which runs `attnviz.__main__.main` or what stands below, and which a
signal ends as any other; only the seconds of the imports are saved. It is asked by lines of JSON on
standard input: {"start": arguments} gives the id of a process, {"wait": id} how that ended.
"""

import json
import os
import sys
from dataclasses import replace
from functools import cache

import attnviz
import attnviz.__main__
import attnviz.cli.report
import attnviz.html
import attnviz.plot.heatmap
from attnviz.maps import make_maps


@cache
def large():
    """Return two results of 30 MB."""
    maps = make_maps(attnviz.attend("the train left the station on time " * 45), words=False)
    return maps, replace(maps, weights=maps.weights / 2)


def write_for_ever(path):
    """Write one large result over another, again and again."""
    while True:
        for maps in large():
            attnviz.save_data(maps, path)


def child(arguments):
    """Run a command; never return."""
    code = 70
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for handle in range(3):
            os.dup2(null, handle)
        if arguments[0] == "write for ever":
            write_for_ever(arguments[1])
        sys.argv = ["attnviz", *arguments]
        code = attnviz.__main__.main()
    finally:
        os._exit(code)


def serve():
    """Answer until nobody asks."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "start" in asked:
            if asked["start"][0] == "write for ever":
                large()  # before the fork, once
            answer = os.fork() or child(asked["start"])
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        print(answer, flush=True)


if __name__ == "__main__":
    # Fonts and weights are found once, before the first fork.
    result = attnviz.attend("warm")
    attnviz.heatmap(result, layer=0, head=0)
    attnviz.view(result).data()
    serve()
