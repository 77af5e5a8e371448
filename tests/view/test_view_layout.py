"""Groups and layers: laws on random graphs, and that time grows with the graph alone."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from quantkit.deploy.view.groups import Layout, Scope, Tree, group_boxes, lay_out

Graph = tuple[list[Scope], list[list[int]]]


@st.composite
def graphs(draw: st.DrawFn, most: int = 40) -> Graph:
    count = draw(st.integers(0, most))
    names = st.sampled_from(["a", "b", "c/d", "part 1 of 2", ""])
    scopes = [tuple(draw(st.lists(names, max_size=3))) for _ in range(count)]
    reads = [
        sorted(draw(st.sets(st.integers(0, box - 1), max_size=3))) if box else []
        for box in range(count)
    ]
    return scopes, reads


def items_of_boxes(tree: Tree, group: int) -> dict[int, int]:
    """Return which item of a group each box in it belongs to."""
    found = {}
    for box in range(len(tree.home)):
        above = tree.above(box)
        if group in above:
            at = above.index(group) + 1
            found[box] = -1 - above[at] if at < len(above) else box
    return found


@given(graphs())
def test_every_box_is_in_one_group_and_no_group_is_in_a_circle(graph: Graph) -> None:
    scopes, reads = graph
    tree = group_boxes(scopes, reads)
    held = Counter(item for group in tree.groups for item in group.items if item >= 0)
    assert held == Counter(range(len(scopes)))
    inner = [-1 - item for group in tree.groups for item in group.items if item < 0]
    assert sorted(inner) == list(range(1, len(tree.groups)))
    for number, group in enumerate(tree.groups):
        assert group.parent < number
        assert number == 0 or len(group.items) > 1
        place = {item: i for i, item in enumerate(group.items)}
        own = items_of_boxes(tree, number)
        for box, item in own.items():
            for source in reads[box]:
                if source in own and own[source] != item:
                    assert place[own[source]] < place[item]


def depths(layout: Layout) -> dict[int, int]:
    return {place: depth for depth, layer in enumerate(layout.layers) for place in layer}


@given(graphs())
def test_lines_go_down_a_layer_at_a_time(graph: Graph) -> None:
    scopes, reads = graph
    tree = group_boxes(scopes, reads)
    for group, layout in zip(tree.groups, lay_out(tree, reads), strict=True):
        places = [place for layer in layout.layers for place in layer]
        assert len(places) == len(set(places))
        assert set(range(len(group.items))) <= set(places)
        depth = depths(layout)
        for net in layout.nets:
            chain = [net.start, *net.via]
            assert [depth[p] for p in chain] == list(
                range(depth[net.start], depth[net.start] + len(chain))
            )
            assert net.ends
            assert all(depth[net.start] < depth[end] <= depth[chain[-1]] + 1 for end in net.ends)
        assert all(depth[entry] == 0 for entry in layout.entries.values())
        assert all(depth[e] == len(layout.layers) - 1 for e in layout.exits.values())


@given(graphs())
def test_every_line_leads_from_what_is_read_to_who_reads_it(graph: Graph) -> None:
    scopes, reads = graph
    tree = group_boxes(scopes, reads)
    layouts = lay_out(tree, reads)
    seen = set()
    for source in range(len(scopes)):
        # Where its values are: places of groups, followed through the ports.
        todo = [(tree.home[source], tree.groups[tree.home[source]].items.index(source))]
        while todo:
            number, start = todo.pop()
            group, layout = tree.groups[number], layouts[number]
            for n, net in enumerate(layout.nets):
                if net.start != start or source not in net.boxes:
                    continue
                for end in net.ends:
                    if end >= len(group.items):
                        outer = next(o for o, place in layout.exits.items() if place == end)
                        item = tree.groups[group.parent].items.index(-1 - number)
                        assert layouts[group.parent].nets[outer].start == item
                        todo.append((group.parent, item))
                    elif group.items[end] >= 0:
                        seen.add((source, group.items[end]))
                    else:
                        inner = -1 - group.items[end]
                        todo.append((inner, layouts[inner].entries[n]))
    assert seen == {(source, box) for box, sources in enumerate(reads) for source in sources}


def test_a_module_that_is_called_twice_is_two_groups() -> None:
    scopes: list[Scope] = [("m",), ("m",), ("n",), ("n",), ("m",), ("m",)]
    tree = group_boxes(scopes, [[], [0], [1], [2], [3], [4]])
    assert [group.label for group in tree.groups] == ["", "m", "n", "m (2)"]


def test_scopes_of_one_item_are_no_groups_and_names_are_joined() -> None:
    tree = group_boxes([("a", "b", "c"), ("a", "b", "d"), ("e", "f")], [[], [0], [1]])
    assert [group.label for group in tree.groups] == ["", "a/b"]
    assert tree.groups[0].items == (-2, 2)


def test_twenty_thousand_in_a_chain_are_cut_into_pieces_one_can_see() -> None:
    count = 20_000
    reads = [[box - 1] if box else [] for box in range(count)]
    tree = group_boxes([()] * count, reads)
    assert max(len(group.items) for group in tree.groups) <= 80
    assert len(lay_out(tree, reads)) == len(tree.groups)


def test_what_everything_reads_is_one_line_in_each_group() -> None:
    count = 4_000
    reads = [[] if not box else sorted({0, box - 1}) for box in range(count)]
    tree = group_boxes([()] * count, reads)
    for layout in lay_out(tree, reads):
        assert sum(0 in net.boxes for net in layout.nets) <= 1


def test_an_empty_graph() -> None:
    tree = group_boxes([], [])
    assert tree.groups[0].items == ()
    assert lay_out(tree, [])[0].layers == ()


def test_thousands_of_scopes_within_each_other() -> None:
    deep: list[Scope] = [tuple("s" * 5_000), tuple("s" * 4_999), ()]
    assert len(group_boxes(deep, [[], [0], [1]]).groups) <= 13
