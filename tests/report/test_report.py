import collections
import dataclasses
import functools
import html
import json
import math
import pickle
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.support import report_samples as samples

import privopt
from privopt.curator.transcript import Transcript
from privopt.ledger.events import GaussianEvent, NoEvent, Repeated, RoundingEvent
from privopt.public import Relation
from privopt.report import forms
from privopt.report.figures import schedule_figure
from privopt.report.model import MOST_ROWS, ModelSummary
from privopt.report.page import (
    combined_html,
    combined_json,
    combined_markdown,
    joint_price,
    save_combined,
)
from privopt.report.releases import MOST_SCHEDULE_POINTS, group_releases
from privopt.report.report import TERMINAL_WIDTH, PrivacyReport

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use", "rect", "circle", "line"}
gaussian, sampled = functools.cache(samples.gaussian_report), functools.cache(samples.sampled_report)
REPORTS = {
    "gaussian": gaussian,
    "sampled": sampled,
    "seeded": functools.cache(samples.seeded_report),
    "off": functools.cache(samples.off_report),
    "by-hand": functools.cache(samples.by_hand_report),
    "adaptive": functools.cache(samples.adaptive_report),
}


def said(report: PrivacyReport, name: str) -> str:
    """A sentence of the page."""
    return forms.sentence("page", name, report.facts).replace("\xa0", " ")


def points(report: PrivacyReport) -> dict[str, str]:
    """The guarantee in technical terms."""
    return {
        title: text.replace("\xa0", " ") for title, text in forms.entries("page", "technical", report.facts)
    }


def assumptions(report: PrivacyReport) -> list[str]:
    return report.to_dict()["utility_assumptions"]


class Page(HTMLParser):
    """Checks that tags nest, and collects what a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\xa0", " ").split())


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return {name: make().to_html() for name, make in REPORTS.items()}


@pytest.mark.parametrize("name", REPORTS)
def test_every_page_parses_and_loads_nothing(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "iframe", "img", "object"}
        for attribute in ("src", "href", "xlink:href", "data"):
            assert (attributes.get(attribute) or "#").startswith("#")
    assert "@import" not in pages[name]
    assert "url(http" not in pages[name]
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize("name", REPORTS)
def test_figures_are_described_and_tables_have_headers(pages: dict[str, str], name: str) -> None:
    page = Page(pages[name])
    described = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert all(attributes["role"] == "img" and attributes["aria-labelledby"] for attributes in described)
    assert len([tag for tag, _ in page.tags if tag == "desc"]) == len(described)
    assert [tag for tag, _ in page.tags].count("h1") == 1
    assert "th" in [tag for tag, _ in page.tags]


def test_the_first_screen_says_what_is_protected_and_how_strongly(pages: dict[str, str]) -> None:
    report = gaussian()
    text = Page(pages["gaussian"]).text
    assert report.epsilon <= 1.0
    assert report.curve.best_guess < 0.54
    first = text[: text.index("The guarantee in technical terms")]
    for phrase in (
        "each single record, that is one row of the data, among 16,152",
        "right at most 53.8 % of the time",
        "30 noisy answers were computed in 30 passes",
        "0.0012",
        "What this does not cover",
        "Noise was drawn exactly and added to whole numbers",
        "Running time",
        "The noise here came from secret randomness",
    ):
        assert phrase in first


def test_floating_point_is_not_covered_only_where_noise_was_drawn_in_it() -> None:
    report = gaussian()
    floats = tuple(dataclasses.replace(group, exact=False) for group in report.releases)
    assert "floating point" not in str(report)
    assert "floating point, timing" in " ".join(str(dataclasses.replace(report, releases=floats)).split())


def test_the_page_contains_the_numbers_of_the_transcript(pages: dict[str, str]) -> None:
    text = Page(pages["gaussian"]).text
    for number in (
        "28.9 times the sensitivity",
        "0.0001238",
        "0.003573",
        "3.83 × 10⁻⁹",
        "1.42 MB",
        "3.2",
        "−0.61",
    ):
        assert number.replace("1.42", "1.4") in text


def test_names_are_escaped(pages: dict[str, str]) -> None:
    assert "<b>plan" not in pages["gaussian"]
    assert "&lt;b&gt;plan&lt;/b&gt;" in pages["gaussian"]
    report = samples.gaussian_report(title="<script>alert(1)</script> $x_{$", metrics={"<i>": "<u>"})
    page = combined_html([report, report], "<i>&", [{"<u>": "<s>"}])
    tags = {tag for tag, _ in Page(page).tags}
    assert not tags & {"script", "i", "u", "s"}


def test_names_of_releases_steer_no_terminal_by_way_of_a_picture(
    recwarn: pytest.WarningsRecorder,
) -> None:
    group = group_releases(samples.adaptive_result(50).transcript)[0]
    hostile = dataclasses.replace(group, name="\x1b[2J\x07")
    page = dataclasses.replace(gaussian(), releases=(hostile, hostile)).to_html()
    assert "Noise scale of each release" in page
    assert not {"\x1b", "\x07"} & set(page)
    assert [str(one.message) for one in recwarn] == []


def test_names_steer_neither_a_terminal_nor_a_page() -> None:
    hostile = "\x1b[2Jred\x07\u202eevil\u200b"
    report = samples.gaussian_report(title=hostile, metrics={hostile: 1.0})
    for text in (
        str(report),
        report.to_html(),
        combined_html([report, report], hostile, [{hostile: hostile}]),
    ):
        assert not set(hostile) & set("\x1b\x07\u202e\u200b") & set(text)
        assert "red" in text


@pytest.mark.parametrize("name", ["seeded", "off", "sampled"])
def test_what_is_not_private_is_said_first(pages: dict[str, str], name: str) -> None:
    warning = {
        "seeded": "Seeded: not private",
        "off": "Noise off: not private",
        "sampled": "Selection not private",
    }
    text = Page(pages[name]).text
    assert text.index(warning[name]) < text.index("What is protected.")
    assert warning[name] in str(REPORTS[name]())
    assert "do not publish them" in text
    assert "the guarantee covers publishing them" in Page(pages["gaussian"]).text
    assert "not private" not in Page(pages["gaussian"]).text.split("What this does not cover")[0]


def test_users_and_adding_or_removing_one_are_named(pages: dict[str, str]) -> None:
    text = Page(pages["sampled"]).text
    for phrase in (
        "each user among up to 5,908: everything a person contributed; at most 20 records of each are used.",
        "with everything they contributed, among 5,908",
        "where each person counts the same: the sum of u F over the sum of u",
        "At most 20 records of each person are used, drawn at random if there are more",
        "used of a typical person: 1 record",
        "a person with none adds nothing and changes no divisor",
        "Somebody who appears under two keys has two shares",
        "whether a given user is in the data at all",
        "a secret random sample, each with probability 2 %",
        f"The {MOST_ROWS} largest of 200 by absolute value",
        "GridSearchCV compared raw validation scores",
        "0.8441",
        "Noise scale of each release",
    ):
        assert phrase in text
    assert "People with several records" not in text


@pytest.mark.parametrize("name", REPORTS)
def test_the_short_text_fits_a_terminal(name: str) -> None:
    report = REPORTS[name]()
    lines = str(report).splitlines()
    assert 8 <= len(lines) <= 27
    assert max(map(len, lines)) <= TERMINAL_WIDTH


@pytest.mark.parametrize("name", REPORTS)
def test_json_round_trips_and_holds_no_released_value_but_the_model(pages: dict[str, str], name: str) -> None:
    report = REPORTS[name]()
    text = report.to_json()
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    again = PrivacyReport.from_dict(document)
    assert again.to_dict() == report.to_dict()
    assert str(again) == str(report)
    assert "0.98765" not in text
    assert "0.98765" not in pages[name]
    assert document["privopt"] == report.version
    assert document["guarantee"]["epsilon"] == ("infinity" if math.isinf(report.epsilon) else report.epsilon)


def test_a_json_document_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a privopt-report document of version 1 to 2, got 'other'"):
        PrivacyReport.from_dict({"format": "other"})


def test_releases_of_one_kind_are_one_line() -> None:
    groups = group_releases(samples.gaussian_result().transcript)
    assert [(group.label, group.count, group.schedule) for group in groups] == [("Clipped gradient", 30, ())]
    hand = samples.by_hand_report()
    noises = [group["noise"] for group in hand.to_dict()["releases"]]
    assert noises == ["Gaussian noise, 40 to 60 times the sensitivity"]
    assert hand.releases[0].scale == pytest.approx((4e-3, 6e-3))
    assert len(hand.releases[0].schedule) == 3
    assert hand.model is not None
    assert hand.model.features == ("['b']", "['w'][0, 0]", "['w'][0, 1]", "['w'][1, 0]", "['w'][1, 1]")


def test_a_filter_is_said_to_be_paid_for_as_one_release(pages: dict[str, str]) -> None:
    report = REPORTS["adaptive"]()
    (group,) = report.releases
    assert group.filter is not None
    assert group.filter.used == pytest.approx(0.98, rel=1e-9)
    assert len(group.events) == 300
    text = Page(pages["adaptive"]).text
    for phrase in (
        "300 answers were chosen as the run went, under a Gaussian filter that was paid for as one release with noise",
        "98 % of it was used",
        "300 noisy answers were computed, of at most 3,000 planned",
        "paid for by a filter",
        "The bound known before the data was read: excess at most 0.031 with probability 0.95, if no gradient is",
        "The bound on the excess rests on this: no gradient is longer than the clip.",
        "How fast the objective grows, KL(gamma=2, kappa=2), was declared and not checked",
    ):
        assert phrase in text
    assert "98 % of a filter used" in " ".join(str(report).split())


def test_what_the_run_shows_about_its_result_is_a_section(pages: dict[str, str]) -> None:
    report = REPORTS["adaptive"]()
    section = Page(pages["adaptive"]).text.partition("What the run shows about its result")[2]
    for phrase in (
        "Gradient norm 0.0123 the norm that the schedule ended at",
        "Certificate ∞",
        "Norms 300 numbers",
    ):
        assert phrase in section
    assert "One query floor 0.00021" in section.partition("What could be expected of it")[2]
    printed = " ".join(str(report).split())
    assert "gradient norm 0.0123: the norm that the schedule ended at, not a bound" in printed
    assert "bound excess at most 0.031 with probability 0.95" in printed
    assert report.to_dict()["findings"]["certificate"]["value"] == "infinity"
    assert "What the run shows" not in Page(pages["gaussian"]).text


@pytest.mark.audit
def test_a_long_run_of_single_releases_is_grouped_fast_and_drawn_as_one_line() -> None:
    transcript = samples.adaptive_result(3000).transcript
    group_releases(transcript)
    started = time.perf_counter()
    (group,) = group_releases(transcript)
    assert time.perf_counter() - started < 1.0  # measured: 0.05 s on one core
    assert len(group.schedule) <= MOST_SCHEDULE_POINTS
    assert group.scale is not None
    assert {min(scale for _, scale in group.schedule), max(scale for _, scale in group.schedule)} == set(
        group.scale
    )
    figure = schedule_figure([group], "long")
    assert figure is not None
    ((name,),) = [one["names"] for one in figure["series"]]
    assert name == "Clipped gradient"
    assert len(figure["series"][0]["points"]) == len(group.schedule)


def test_the_figure_tells_kinds_with_one_label_apart() -> None:
    group = group_releases(samples.adaptive_result(50).transcript)[0]
    figure = schedule_figure([group, group], "two")
    assert figure is not None
    assert [one["names"] for one in figure["series"]] == [["Clipped gradient (1)"], ["Clipped gradient (2)"]]
    flat = dataclasses.replace(group, schedule=tuple((at, 0.0) for at, _ in group.schedule))
    assert schedule_figure([flat], "none") is None


def test_several_runs_stand_in_one_file_with_their_joint_price(tmp_path: Path) -> None:
    reports = [
        samples.gaussian_report(epsilon, title=f"Doctor visits at {epsilon:g}") for epsilon in (0.5, 1.0, 2.0)
    ]
    page = Page(
        save_combined(tmp_path / "all.html", reports, "RAND", samples.SUMMARY).read_text(encoding="utf-8")
    )
    identifiers = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    joint = joint_price(reports)
    assert joint is not None
    assert 2.0 < joint[0] < 3.5
    for phrase in (
        "Doctor visits at 0.5",
        "Doctor visits at 2",
        "0.7934",
        "∞",
        "joint guarantee of ε = 2.339",
    ):
        assert phrase in page.text
    document = json.loads(combined_json(reports, "RAND", samples.SUMMARY))
    assert document["joint_price"]["epsilon"] == pytest.approx(joint[0])
    assert document["summary"][0]["epsilon"] == "infinity"
    assert [run["title"] for run in document["runs"]] == [report.title for report in reports]


def test_runs_under_different_relations_have_no_joint_price() -> None:
    reports = [gaussian(), sampled()]
    assert reports[0].relation is Relation.REPLACE_ONE
    assert joint_price(reports) is None
    assert "no joint price" in Page(combined_html(reports, "Two")).text


def test_the_suffix_chooses_the_form(tmp_path: Path) -> None:
    report = gaussian()
    assert report.save(tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (
        json.loads(report.save(tmp_path / "report.json").read_text(encoding="utf-8"))["title"] == report.title
    )
    with pytest.raises(
        ValueError, match=r"written as \.html, \.json or \.md, got the file name 'report\.pdf'"
    ):
        report.save(tmp_path / "report.pdf")


def test_a_model_summary_checks_its_shapes() -> None:
    with pytest.raises(ValueError, match="features must be 2 names"):
        ModelSummary.of("m", [1.0, 2.0], features=["a"])
    with pytest.raises(ValueError, match="classes must be 2 names"):
        ModelSummary.of("m", [[1.0], [2.0]], classes=["a", "b", "c"])
    with pytest.raises(ValueError, match="intercept must be 1 numbers"):
        ModelSummary.of("m", [1.0, 2.0], intercept=[1.0, 2.0])
    largest = ModelSummary.of("m", [0.1, -3.0, 2.0], intercept=0.5).largest(2)
    assert [name for name, _ in largest] == ["(intercept)", "x1", "x2"]


def test_a_report_pickles_and_needs_no_data_to_be_rendered_again() -> None:
    again = pickle.loads(pickle.dumps(sampled()))
    assert str(again) == str(sampled())


def test_rows_that_were_divided_are_not_said_to_be_shortened() -> None:
    shortened, divided = gaussian(), dataclasses.replace(gaussian(), divided_rows=True)
    assert any("are shortened to it" in sentence for sentence in assumptions(shortened))
    sentences = assumptions(divided)
    assert any("Every row was divided by its length" in sentence for sentence in sentences)
    assert not any("Rows longer than" in sentence for sentence in sentences)
    assert PrivacyReport.from_dict(divided.to_dict()).divided_rows


def test_the_table_of_coefficients_says_what_its_numbers_are() -> None:
    assert gaussian().model is not None
    model = dataclasses.replace(gaussian().model, meaning="One unit of a column is a foot.")
    report = dataclasses.replace(gaussian(), model=model)
    assert "One unit of a column is a foot." in report.to_html()
    back = PrivacyReport.from_dict(report.to_dict()).model
    assert back is not None
    assert back.meaning == model.meaning
    assert "parameters as the loss takes them" in ModelSummary.of_params([1.0, 2.0]).meaning


def test_a_run_that_chose_fewer_steps_is_not_said_to_have_taken_the_planned_ones() -> None:
    report = gaussian()
    assert report.plan is not None
    plan = dataclasses.replace(report.plan, adaptive=True, releases=report.count + 7)
    assert "The planned steps were all taken" in said(report, "price")
    chosen = said(dataclasses.replace(report, plan=plan), "price")
    assert "The run chose the number of its steps as it went, and took all of them." in chosen
    assert "planned steps" not in chosen


def test_a_report_says_what_rounding_takes_of_delta() -> None:
    report = gaussian()
    assert "Rounding" not in points(report)
    group = report.releases[0]
    rounding = (Repeated(RoundingEvent(1e-12), 5), 2)
    rounded = dataclasses.replace(group, events=(*group.events, rounding), ranges=())
    releases = (rounded, *report.releases[1:])
    told = points(dataclasses.replace(report, releases=releases))["Rounding"]
    assert "within a total variation of 1 × 10⁻¹¹" in told
    assert "(1 + e^ε) times as much" in told


def test_a_report_of_a_game_speaks_of_draws() -> None:
    game = privopt.BilinearGame(rows=6, columns=6)
    records = np.random.default_rng(0).choice([-1.0, 1.0], size=(400, game.width))
    units = privopt.Units.from_arrays(records, row_bound=game.row_bound)
    report = privopt.minimax(
        game, units, budget=privopt.Budget(1.0, 1e-6), solver="sampled-dual-averaging"
    ).report
    text = Page(report.to_html()).text
    assert "noisy answer" not in text
    assert re.search(r"exponential-mechanism selections, rho [0-9.e-]+ in all", text)
    labels = [group.label for group in report.releases if group.is_drawn]
    assert labels
    assert all(re.search(rf"{label} [\d,]+ — drawn by a mechanism", text) for label in labels)


def test_sums_of_a_stream_are_shown_with_their_noise():
    transcript = Transcript(Relation.REPLACE_ONE)
    transcript.append(samples.release("gradient sums", GaussianEvent(20.0), 1, 0.0, multiplier=0.0))
    scales = np.array([1.0, 2.0, 3.0])
    transcript.append(samples.release("PrefixSum.add", NoEvent(), 3, scales, multiplier=10.0))
    group = group_releases(transcript)[-1]
    assert group.is_sum_of_stream
    assert forms.sentence("page", "noise", group.facts()).startswith(
        "correlated over the sums, so that it nearly"
    )
    assert group.scale == pytest.approx((1.0, 3.0))
    assert group.sensitivity == pytest.approx((0.1, 0.3))
    assert len(group.schedule) == 3


@pytest.mark.parametrize(
    ("settings", "bought"),
    [
        ({"coarse": "None"}, "buys the second moment of the rows"),
        ({"longest": 200.0}, "buys the clip"),
        ({"candidates": 64}, "buys the choice of a start"),
        ({"variance_reduction": True}, None),
    ],
)
def test_a_share_is_said_to_buy_what_it_does(settings: dict[str, float | str], bought: str | None) -> None:
    report = gaussian()
    assert report.plan is not None
    plan = dataclasses.replace(report.plan, settings={"share": 0.05, **settings})
    shares = [one for one in assumptions(dataclasses.replace(report, plan=plan)) if "A share of" in one]
    assert len(shares) == (bought is not None)
    assert all(str(bought) in one and "A share of 0.05 of the budget" in one for one in shares)


def runs_of_words(text: str, count: int = 7) -> list[str]:
    """Every run of so many words in the words of a template, none across what is no word of its text."""
    text = re.sub(r"\{#.*?#\}", "\0", text, flags=re.DOTALL)
    constants = re.findall(r'"([^"]*)"', text)
    parts = [*re.split(r"\{%.*?%\}|\{\{.*?\}\}|<[^>]*>|\0", text, flags=re.DOTALL), *constants]
    words = [re.findall(r"[\w'-]+", part) for part in parts]
    return [" ".join(part[at : at + count]) for part in words for at in range(len(part) - count + 1)]


def test_no_sentence_of_a_template_stands_twice() -> None:
    templates = [path for folder in forms.FOLDERS for path in folder.glob("*.j2")]
    assert len(templates) > 8
    found = collections.Counter(one for path in templates for one in runs_of_words(path.read_text("utf-8")))
    assert len(found) > 1000
    assert [words for words, count in found.items() if count > 1] == []


@pytest.mark.parametrize("name", REPORTS)
def test_markdown_says_what_the_page_says(pages: dict[str, str], name: str) -> None:
    report = REPORTS[name]()
    text = report.to_markdown()
    plain = re.sub(r"\\(.)", r"\1", html.unescape(text)).replace("\xa0", " ")
    for point in report.to_dict()["not_covered"]:
        assert f"* **{point['title']}.** {point['text']}".replace("\xa0", " ") in plain
    for sentence in (*report.to_dict()["utility_assumptions"], *report.declared, *report.notices):
        assert sentence.replace("\xa0", " ") in plain
    for title, said in points(report).items():
        assert f"* {title}: {said}" in plain
    headings = [words for tag, words in headed(pages[name]) if tag in ("h1", "h2")]
    assert re.findall(r"^##? (.*)$", text, re.MULTILINE) == [html.escape(one) for one in headings]
    assert "<svg" not in text
    assert not re.search(r"\n\n\n|[ \t]\n", text)
    assert all(line.count("|") >= 3 for line in text.splitlines() if line.startswith("|"))


def headed(page: str) -> list[tuple[str, str]]:
    found = re.findall(r"<(h\d)[^>]*>(.*?)</h\d>", page)
    return [(tag, html.unescape(words).replace("\xa0", " ")) for tag, words in found]


def test_names_make_no_marks_in_markdown(tmp_path: Path) -> None:
    hostile = "*a* _b_ `c` [d](javascript:e) <script>f</script> | g\n# h\x1b"
    report = samples.gaussian_report(title=hostile, metrics={hostile: 1.0}, extra_notices=[hostile])
    text = report.save(tmp_path / "report.md").read_text(encoding="utf-8")
    assert r"\*a\* \_b\_ \`c\` \[d\](javascript:e) &lt;script&gt;f&lt;/script&gt; \| g # h?" in text
    assert "<script" not in text
    assert "\x1b" not in text
    table = [line for line in text.splitlines() if line.startswith("|") and "javascript" in line]
    assert [re.sub(r"\\.", "", line).count("|") for line in table] == [3]
    together = combined_markdown([report, report], hostile, [{hostile: hostile}])
    assert "<script" not in together
    assert re.findall(r"^#+ h", together, re.MULTILINE) == []


@pytest.mark.parametrize("name", REPORTS)
def test_a_document_of_the_first_version_still_prints(name: str) -> None:
    """What later versions added is left out of it."""
    report = REPORTS[name]()
    document = report.to_dict() | {"format_version": 1, "privopt": "0.0.1"}
    for member in ("findings", "pictures", "account", "replay"):
        del document[member]
    for group in document["releases"]:
        del group["exact"], group["filter"], group["blocks"]
        for part in group["events"]:
            part.pop("sensitivity", None), part.pop("scale", None)
    for member in ("bound", "indicators", "adaptive", "reason", "measure", "predicted_range", "black_box"):
        (document["plan"] or {}).pop(member, None)
    again = PrivacyReport.from_dict(json.loads(json.dumps(document)))
    assert f"epsilon {again.epsilon:.4g}"[:11] in str(again) or math.isinf(again.epsilon)
    assert "64-bit floating point" in str(again) or math.isinf(again.epsilon)
    page = Page(again.to_html()).text
    assert "Made by privopt 0.0.1" in page
    assert "What was released" in page
    assert again.to_markdown().startswith(f"# {report.title}")
