"""The slow, exact oracle of every verifier: rationals and enumeration, no tensors.

A verifier is lossless if the distribution of the tokens it emits, continued by the target's own rows, is the target's.
Here that distribution is summed exactly, over all drafts and all outcomes of the rule, in `Fraction`. A test then asks for equality
with no tolerance, and plants defects that must be seen: a rule's parts are arguments, so that a defect is one line.

For matching the outcome of the target's draws is enumerated: a table that gives one token for every prefix that a walk
may reach, weighted by the target's probabilities. That the draws at different positions are independent is what
position-keyed noise provides.

For rejection and block verification a tree comes with its probability under the drafter and with the rows its nodes
were drawn from (`DraftTree.draft_probs`, here lists of `Fraction`). The rule's outcomes on that tree are written down
with their probabilities, never sampled. `reject_by_numbers` and `block_by_numbers` are the same rules under given
random numbers, to compare decisions one by one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations, product

from foreword.tree.draft_tree import DraftTree
from foreword.verify.verdict import Verdict

Prefix = tuple[int, ...]
Row = Sequence[Fraction]
Model = Callable[[Prefix], Row]
Law = dict[Prefix, Fraction]
MatchRule = Callable[[DraftTree, Mapping[int, int]], Verdict]
WeightedTrees = Iterable[tuple[DraftTree, Fraction]]
Outcome = tuple[Prefix, Fraction, Row]  # accepted tokens, their probability, what the next token is drawn from
Outcomes = Callable[[DraftTree, Model], Iterable[Outcome]]


def target_law(target: Model, length: int) -> Law:
    """The distribution of `length` tokens of plain sampling."""
    return extend({(): Fraction(1)}, target, length)


def extend(law: Law, target: Model, length: int) -> Law:
    """Continue every prefix with the target's own rows up to `length` tokens; longer ones are cut."""
    done: Law = {}
    for prefix, weight in law.items():
        if len(prefix) >= length:
            _add(done, prefix[:length], weight)
            continue
        for token, prob in enumerate(target(prefix)):
            if prob:
                for full, mass in extend({(*prefix, token): weight * prob}, target, length).items():
                    _add(done, full, mass)
    return done


def matching_law(trees: WeightedTrees, target: Model, length: int, rule: MatchRule) -> Law:
    """The distribution of `length` tokens when `rule` verifies a random tree (trees come with their probabilities)."""
    law: Law = {}
    for tree, tree_weight in trees:
        for choices, weight in _choice_tables(tree, target):
            for full, mass in extend({rule(tree, choices).emitted: tree_weight * weight}, target, length).items():
                _add(law, full, mass)
    return law


def prefix_of(tree: DraftTree, node: int) -> Prefix:
    """The drafted tokens from the last committed node down to `node`."""
    return tuple(tree.token_ids[n] for n in tree.path_to(node) if n >= tree.num_known)


def chain_trees(draft: Model, length: int, root: int = 0) -> WeightedTrees:
    """Every chain of `length` drafted tokens with its probability under the drafter."""
    return drawn_trees(draft, [1] * length, root)


def drawn_trees(draft: Model, widths: Sequence[int], root: int = 0) -> WeightedTrees:
    """Every tree whose nodes at depth d have `widths[d]` children drawn without replacement, with its probability.

    A node has fewer children where its row holds fewer tokens.
    """

    def grow(tree: DraftTree, node: int, weight: Fraction) -> Iterable[tuple[DraftTree, Fraction]]:
        if node == tree.num_nodes or tree.depths[node] == len(widths):
            yield tree, weight
            return
        row = draft(prefix_of(tree, node))
        for tokens, prob in ordered_draws(row, widths[tree.depths[node]]):
            grown = DraftTree(
                [*tree.token_ids, *tokens],
                [*tree.parents, *[node] * len(tokens)],
                draft_probs=[*tree.draft_probs, *[row] * len(tokens)],
            )
            yield from grow(grown, node + 1, weight * prob)

    return grow(DraftTree([root], [-1], draft_probs=[None]), 0, Fraction(1))


def ordered_draws(row: Row, count: int) -> Iterable[tuple[Prefix, Fraction]]:
    """Every way to draw `count` different tokens in turn (all there are, if fewer), with its probability."""
    support = [token for token, prob in enumerate(row) if prob]
    for tokens in permutations(support, min(count, len(support))):
        weight, left = Fraction(1), sum(row, Fraction(0))
        for token in tokens:
            weight *= row[token] / left
            left -= row[token]
        yield tokens, weight


def law_of_outcomes(trees: WeightedTrees, outcomes: Outcomes, target: Model, length: int) -> Law:
    """The distribution of `length` tokens: what a verifier accepts, one token more, and the target's own from there."""
    emitted: Law = {}
    for tree, tree_weight in trees:
        for accepted, weight, row in outcomes(tree, target):
            for token, prob in enumerate(row):
                if prob:
                    _add(emitted, (*accepted, token), tree_weight * weight * prob)
    return extend(emitted, target, length)


def expected_len(trees: WeightedTrees, outcomes: Outcomes, target: Model) -> Fraction:
    """Mean number of tokens per step emits, the extra token included."""
    return sum(
        (w * weight * (len(accepted) + 1) for tree, w in trees for accepted, weight, _ in outcomes(tree, target)),
        Fraction(0),
    )


def accept_ratio(target_prob: Fraction, draft_prob: Fraction) -> Fraction:
    """Min(1, p / q) [leviathan23, chen23]."""
    return min(Fraction(1), target_prob / draft_prob)


def residual(target_row: Row, draft_row: Row) -> Row:
    """The normalised positive part of p - q; p itself where that is nothing."""
    owed = [max(p - q, Fraction(0)) for p, q in zip(target_row, draft_row, strict=True)]
    total = sum(owed)
    return [x / total for x in owed] if total else target_row


def removed(row: Row, token: int) -> Row:
    """A row without one of its tokens, normalised; all 0 where nothing is left."""
    left = sum(row) - row[token]
    return [x / left if t != token and left else Fraction(0) for t, x in enumerate(row)]


@dataclass(frozen=True)
class RejectionRule:
    """The parts of the rule; each may be replaced by a wrong one."""

    accept: Callable[[Fraction, Fraction], Fraction] = accept_ratio
    residual: Callable[[Row, Row], Row] = residual
    remove: Callable[[Row, int], Row] = removed

    def rounds(self, tree: DraftTree, node: int, row: Row) -> tuple[list[tuple[int, Fraction]], Row]:
        """Each child of `node` with its chance to be kept once those before it are not; what is left to draw from."""
        rounds: list[tuple[int, Fraction]] = []
        tried: list[int] = []
        for child in _children(tree, node):
            token = tree.token_ids[child]
            proposal = _proposal(tree, child, len(row))
            for earlier in tried if tree.draft_probs and tree.draft_probs[child] else ():
                proposal = self.remove(proposal, earlier)
            rounds.append((child, self.accept(row[token], proposal[token])))
            row = self.residual(row, proposal)
            tried.append(token)
        return rounds, row

    def outcomes(self, tree: DraftTree, target: Model) -> Iterator[Outcome]:
        """Everything the rule may do on a tree."""

        def walk(node: int, mass: Fraction) -> Iterator[Outcome]:
            prefix = prefix_of(tree, node)
            rounds, row = self.rounds(tree, node, target(prefix))
            for child, accept in rounds:
                if mass * accept:
                    yield from walk(child, mass * accept)
                mass *= 1 - accept
            if mass:
                yield prefix, mass, row

        return walk(tree.num_known - 1, Fraction(1))


def reject_by_numbers(
    tree: DraftTree, target: Model, numbers: Mapping[int, Fraction], last: Fraction, rule: RejectionRule | None = None
) -> Prefix:
    """The emitted tokens if node n is kept where `numbers[n]` is below its chance and `last` picks the extra token."""
    node = tree.num_known - 1
    while True:
        prefix = prefix_of(tree, node)
        rounds, row = (rule or RejectionRule()).rounds(tree, node, target(prefix))
        kept = next((child for child, accept in rounds if numbers[child] < accept), None)
        if kept is None:
            return *prefix, pick_exactly(row, last)
        node = kept


def block_weight(weight: Fraction, target_prob: Fraction, draft_prob: Fraction) -> Fraction:
    """Min(1, P p / q) [block25]."""
    return min(Fraction(1), weight * target_prob / draft_prob)


def block_owed(weight: Fraction, target_row: Row, draft_row: Row) -> Row:
    """The positive part of P p - q, not normalised."""
    return [max(weight * p - q, Fraction(0)) for p, q in zip(target_row, draft_row, strict=True)]


def block_chance(weight: Fraction, owed: Fraction) -> Fraction:
    """R / (R + 1 - P); 0 where R is."""
    return owed / (owed + 1 - weight) if owed else Fraction(0)


def last_passed(passed: Sequence[bool]) -> int:
    """How many draft tokens to keep: up to the last prefix that passed."""
    return max((i + 1 for i, ok in enumerate(passed) if ok), default=0)


@dataclass(frozen=True)
class BlockRule:
    """The parts of the rule; each may be replaced by a wrong one."""

    weight: Callable[[Fraction, Fraction, Fraction], Fraction] = block_weight
    owed: Callable[[Fraction, Row, Row], Row] = block_owed
    chance: Callable[[Fraction, Fraction], Fraction] = block_chance
    choose: Callable[[Sequence[bool]], int] = last_passed

    def prefixes(self, tree: DraftTree, target: Model) -> list[tuple[Fraction, Row]]:
        """For 0, 1, .. kept guesses of a chain: the chance to pass, and what the next token is drawn from then."""
        found: list[tuple[Fraction, Row]] = []
        weight = Fraction(1)
        for node in range(tree.num_known - 1, tree.num_nodes):
            row = target(prefix_of(tree, node))
            if node == tree.num_nodes - 1:
                found.append((min(weight, Fraction(1)), row))
                break
            proposal = _proposal(tree, node + 1, len(row))
            owed = self.owed(weight, row, proposal)
            total = sum(owed, Fraction(0))
            chance = min(max(self.chance(weight, total), Fraction(0)), Fraction(1))
            found.append((chance, [x / total for x in owed] if total else row))
            token = tree.token_ids[node + 1]
            weight = self.weight(weight, row[token], proposal[token])
        return found

    def outcomes(self, tree: DraftTree, target: Model) -> Iterator[Outcome]:
        """Everything the rule may do on a chain."""
        prefixes = self.prefixes(tree, target)
        chances = [chance for chance, _ in prefixes[1:]]
        for passed in product((False, True), repeat=len(chances)):
            mass = Fraction(1)
            for ok, chance in zip(passed, chances, strict=True):
                mass *= chance if ok else 1 - chance
            if mass:
                num_kept = self.choose(passed)
                yield tuple(tree.token_ids[tree.num_known :][:num_kept]), mass, prefixes[num_kept][1]


def block_by_numbers(tree: DraftTree, target: Model, numbers: Mapping[int, Fraction], last: Fraction) -> Prefix:
    """The emitted tokens if the prefix up to node n passes where `numbers[n]` is below its chance."""
    prefixes = BlockRule().prefixes(tree, target)
    num_kept = last_passed([numbers[tree.num_known + i] < chance for i, (chance, _) in enumerate(prefixes[1:])])
    return *tree.token_ids[tree.num_known :][:num_kept], pick_exactly(prefixes[num_kept][1], last)


def pick_exactly(row: Row, number: Fraction) -> int:
    """The first token whose cumulative probability exceeds `number`."""
    total = Fraction(0)
    for token, prob in enumerate(row):
        total += prob
        if total > number:
            return token
    raise AssertionError(f"{number = } is not below the row's sum, {total}")


def _children(tree: DraftTree, node: int) -> list[int]:
    return [n for n in range(tree.num_known, tree.num_nodes) if tree.parents[n] == node]


def _proposal(tree: DraftTree, node: int, vocab_size: int) -> Row:
    """The row a node was drawn from; a point mass where it was chosen."""
    row = None if tree.draft_probs is None else tree.draft_probs[node]
    return row or [Fraction(int(token == tree.token_ids[node])) for token in range(vocab_size)]


def _choice_tables(tree: DraftTree, target: Model) -> Iterable[tuple[dict[int, int], Fraction]]:
    nodes = range(tree.num_known - 1, tree.num_nodes)
    rows = [[(token, prob) for token, prob in enumerate(target(prefix_of(tree, node))) if prob] for node in nodes]
    for outcome in product(*rows):
        weight = Fraction(1)
        for _, prob in outcome:
            weight *= prob
        yield dict(zip(nodes, (token for token, _ in outcome), strict=True)), weight


def _add(law: Law, key: Prefix, weight: Fraction) -> None:
    law[key] = law.get(key, Fraction(0)) + weight
