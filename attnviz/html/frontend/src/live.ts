/** The page of `attnviz serve`. */
export function live(): void {}
