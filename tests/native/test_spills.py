"""No product's inner loop keeps a vector in memory: what a compiler does when registers run out, and what nobody sees in the source."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PRODUCT = re.compile(r"(?:\{vex\} )?vp(?:maddubsw|maddwd|dpbusd)\b")
STORE = re.compile(r"vmov\w+\s+%[xyz]mm\d+,[^%]*\(")  # the last operand is where it goes
STACK = re.compile(r"\s(?:vp?\w+)\s.*\(%rsp[,)].*mm|\svp?\w+\s.*mm\d+,-?0x[0-9a-f]+\(%rsp")
JUMP = re.compile(r"j\w+\s+([0-9a-f]+)")


def inner_loops(lines: list[tuple[int, str]]) -> Iterator[list[str]]:
    """Bodies of loops with no loop within: from the target of a jump back to the jump."""
    index = {address: i for i, (address, _) in enumerate(lines)}
    loops = []
    for i, (_, text) in enumerate(lines):
        target = JUMP.match(text)
        if target and (begin := index.get(int(target[1], 16), i + 1)) <= i:
            loops.append((begin, i))
    loops.sort(key=lambda loop: loop[1])
    innermost_begin = -1
    for begin, end in loops:
        if begin > innermost_begin:
            innermost_begin = begin
            yield [text for _, text in lines[begin : end + 1]]


def spills(body: list[str]) -> list[str]:
    return [text for text in body if STORE.match(text) or STACK.search(f" {text}")]


@pytest.fixture(scope="module")
def product_loops() -> list[list[str]]:
    import foreword_kernels

    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("objdump, which takes the built kernels apart, is missing")
    if "avx2" not in foreword_kernels.available_isas():
        pytest.skip("the registers looked at are those of x86")
    library = next(Path(foreword_kernels.__file__).parent.glob("_native*.so"))
    text = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True
    ).stdout
    found = (re.match(r"\s+([0-9a-f]+):\t(.*)", line) for line in text.splitlines())
    lines = [(int(match[1], 16), match[2]) for match in found if match]
    # Of AVX2 and AVX-VNNI, whose sixteen registers are few; AVX-512 unrolls groups whole, totals and all.
    loops = [body for body in inner_loops(lines) if not any("%zmm" in line for line in body)]
    return [body for body in loops if any(PRODUCT.match(line) for line in body)]


def test_no_product_loop_spills(product_loops: list[list[str]]) -> None:
    assert len(product_loops) > 40  # of each path, token count and number of bits one or more
    assert [loop for loop in product_loops if spills(loop)] == []


def test_a_spill_is_found() -> None:
    loop = [
        "vmovdqu (%rdx),%ymm1",
        "vpmaddwd %ymm2,%ymm1,%ymm3",
        "vpaddd 0x28(%rsp),%ymm3,%ymm2",
        "vmovdqa %ymm2,0x28(%rsp)",
        "jne 10",
    ]
    assert spills(loop) == loop[2:4]
    assert spills(["vmovdqa -0x40(%rsp),%ymm0"]) == ["vmovdqa -0x40(%rsp),%ymm0"]
    assert spills(["vpmaddwd %ymm2,%ymm1,%ymm3", "vpbroadcastd (%rax,%r10,2),%ymm2", "prefetcht1 (%rdx,%r15,1)"]) == []
    lines = [(0, "nop"), (4, loop[0]), (8, loop[1]), (12, "jne 4 <x+0x4>"), (16, "jmp 0 <x>")]
    assert list(inner_loops(lines)) == [["vmovdqu (%rdx),%ymm1", loop[1], "jne 4 <x+0x4>"]]
