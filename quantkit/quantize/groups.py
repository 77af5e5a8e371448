"""Names that belong together: a union-find with path compression."""

from collections.abc import Iterator


class Groups:
    """Disjoint groups of names, in the order in which they came."""

    __slots__ = ("_parents",)

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._parents

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def add(self, name: str) -> None:
        """Let a name that is in no group begin one."""
        self._parents.setdefault(name, name)

    def root(self, name: str) -> str:
        """Return the name that stands for a group; a name that is in none stands for itself."""
        path = []
        while (parent := self._parents.get(name, name)) != name:
            path.append(name)
            name = parent
        self._parents.update(dict.fromkeys(path, name))
        return name

    def join(self, one: str, other: str) -> None:
        """Let two groups be one, for which the first one's name stands."""
        self.add(other)
        self._parents[self.root(other)] = self.root(one)
