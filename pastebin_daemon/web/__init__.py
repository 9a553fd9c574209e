"""HTTP. A handler reads as a story: parse, act, answer; inside of it there are no invalid ids, sizes or times."""
