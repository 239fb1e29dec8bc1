"""The page in a real browser: it loads, runs a prompt, and shows the numbers of the trace."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from test_viz_server import live, serving, trace  # noqa: F401

from minfer.trace import Trace
from minfer.viz import Feed, SavedTrace, comparison

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium"),
    pytest.mark.filterwarnings("ignore"),  # playwright's own
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    made = browser.new_page(viewport={"width": 1360, "height": 860})
    errors: list[str] = []
    made.on("pageerror", lambda error: errors.append(str(error)))
    made.on("console", lambda message: errors.append(message.text))
    yield made
    made.close()
    assert errors == []


def shown(page: Any, field: str) -> str:
    return str(page.inner_text(f'#panel [data-field="{field}"]'))


def test_a_prompt_runs_and_a_node_shows_the_numbers_of_its_step(page: Any) -> None:
    with serving(live) as client:
        steps = []
        with client.events() as events:
            page.goto(f"http://127.0.0.1:{client._port}/")
            page.wait_for_selector("#status[data-state=ready]")
            page.fill("#prompt", "Once upon a time")
            page.fill("#max-tokens", "6")
            page.click("#run")
            page.wait_for_selector("#rate:not(:empty)")
            for kind, content in events:
                if kind == "step":
                    steps.append(content)
                if kind == "usage":
                    break
        assert page.locator("#tokens button.made").count() == 6
        page.click('[data-name="blk.0.attention"]')
        page.click("#previous")
        page.wait_for_selector("#step-text >> text=step 4")
        plan = next(
            content
            for kind, content in events_of(client)
            if kind == "plan" and content["id"] == steps[4]["plan"]
        )
        index = [n["name"] for n in plan["nodes"]].index("blk.0.attention")
        node = next(n for n in steps[4]["nodes"] if n[0] == index)
        assert shown(page, "op") == "attention"
        assert float(shown(page, "low")) == pytest.approx(node[6], rel=1e-5)
        assert float(shown(page, "high")) == pytest.approx(node[7], rel=1e-5)
        assert float(shown(page, "rms")) == pytest.approx(node[10], rel=1e-5)
        time, unit = shown(page, "us").split()
        assert unit == "µs"
        assert float(time) == pytest.approx(node[2], abs=0.051)  # JavaScript rounds halves up
        assert page.locator("#panel .candidates li").count() == 5
        page.click("#tab-attention")
        page.click("#attention-form button")
        page.wait_for_selector("#attention-text >> text=looks most at")


def events_of(client: Any) -> list[tuple[str, Any]]:
    found = []
    with client.events() as events:
        for event in events:
            found.append(event)
            if event[0] == "usage":
                return found
    return found


def test_keys_reach_everything(page: Any) -> None:
    with serving(live) as client:
        page.goto(f"http://127.0.0.1:{client._port}/")
        page.wait_for_selector("#status[data-state=ready]")
        page.focus("#prompt")
        page.keyboard.type("Hello")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("#rate:not(:empty)")
        page.focus('[data-name="blk.0.attn_norm"]')
        page.keyboard.press("Enter")
        page.keyboard.press("ArrowRight")
        chosen = page.get_attribute('.node[aria-pressed="true"]', "data-name")
        assert chosen.startswith("blk.0.attn_q")
        page.focus("#tab-graph")
        page.keyboard.press("ArrowRight")
        assert page.get_attribute("#tab-timeline", "aria-selected") == "true"
        page.wait_for_selector("#longest li:nth-child(10)")


def test_a_saved_trace_and_a_comparison(page: Any, trace: Trace) -> None:  # noqa: F811
    compared = comparison(trace, trace)
    with serving(lambda feed: SavedTrace(trace, feed), compared) as client:
        page.goto(f"http://127.0.0.1:{client._port}/")
        page.wait_for_selector("#status[data-state=saved]")
        page.wait_for_selector('[data-name="blk.1.ffn_norm"]')
        assert page.is_hidden("#prompt-form")
        page.click("#tab-compare")
        assert "They do not part" in page.inner_text("#verdict")
        assert page.locator("#compare tbody tr").count() == len(compared["rows"])


@pytest.mark.parametrize("chat", [True, False])
def test_a_prompt_goes_through_the_chat_template_if_there_is_one(
    page: Any,
    trace: Trace,  # noqa: F811
    chat: bool,
) -> None:
    def source(feed: Feed) -> SavedTrace:
        feed.send("model", {"n_layers": 2, "n_heads": 4, "chat": chat}, lasting="model")
        return SavedTrace(trace, feed)

    with serving(source) as client:
        page.goto(f"http://127.0.0.1:{client._port}/")
        page.wait_for_selector("#status[data-state=saved]")
        assert page.is_checked("#chat") == chat
        assert page.is_enabled("#chat") == chat


def test_thousands_of_nodes_are_quick(page: Any, trace: Trace) -> None:  # noqa: F811
    """A trace with its blocks repeated two hundred times: opened whole within two seconds."""
    from dataclasses import replace

    plan = trace.plans[trace.steps[-1].plan]
    ids = [i for i, n in enumerate(plan.nodes) if n.layer == 0]
    nodes, done = list(plan.nodes), list(trace.steps[-1].nodes)
    by_node = {n.node: n for n in done}
    for layer in range(2, 252):
        base = len(nodes)
        moved = {old: base + at for at, old in enumerate(ids)}
        for old in ids:
            node = plan.nodes[old]
            srcs = tuple(moved.get(s, s) for s in node.srcs)
            name = node.name.replace("blk.0.", f"blk.{layer}.")
            nodes.append(replace(node, name=name, layer=layer, srcs=srcs))
            done.append(replace(by_node[old], node=moved[old]))
    large = replace(
        trace,
        plans={plan.id: replace(plan, nodes=tuple(nodes))},
        steps=(replace(trace.steps[-1], nodes=tuple(done)),),
    )
    assert len(nodes) > 3000
    with serving(lambda feed: SavedTrace(large, feed)) as client:
        page.goto(f"http://127.0.0.1:{client._port}/")
        page.wait_for_selector("#status[data-state=saved]")
        page.wait_for_selector('[data-group="blk.251"]')
        took = page.evaluate(
            "() => new Promise((done) => { const began = performance.now();"
            " document.getElementById('open-all').click();"
            " requestAnimationFrame(() => setTimeout(() => done(performance.now() - began))); })"
        )
        assert page.locator(".node").count() > 3000
        assert took < 2000
