//! Plots as SVG, without fonts or a drawing library: reads a query and queries a second across
//! recall or memory, and live updates over time.

use std::fmt::Write;

use crate::live::result::Span;
use crate::report::{Common, Line};

/// Okabe and Ito's colours, for readers with any colour vision.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f",
];
const WIDTH: f64 = 1100.0;
const PANEL: (f64, f64) = (440.0, 360.0);
const TOP: f64 = 72.0;
const LEFTS: [f64; 2] = [80.0, 632.0];
const BELOW: f64 = 64.0;
const LEGEND_ROW: f64 = 22.0;
const LOW_PANEL: f64 = 240.0;

/// The horizontal axis of both panels.
pub struct Across {
    name: String,
    value: fn(&Common) -> f64,
    axis: fn(&[f64]) -> Axis,
    point: fn(&Common) -> String,
}

impl Across {
    /// Recall: the line of a run connects its list sizes.
    pub fn recall(k: usize) -> Across {
        Across {
            name: format!("recall@{k}"),
            value: |point| point.recall,
            axis: |values| Axis::of_recall(values.iter().copied()),
            point: |point| format!("L {}: recall {:.4}", point.list, point.recall),
        }
    }

    /// Memory: a line connects runs that differ only in their budgets.
    pub fn memory() -> Across {
        Across {
            name: "memory budget in MB".into(),
            value: megabytes,
            axis: |values| Axis::of(values.iter().copied()),
            point: |point| format!("{} MB: recall {}", label(megabytes(point)), point.recall),
        }
    }
}

fn megabytes(point: &Common) -> f64 {
    point.memory.unwrap_or(0) as f64 / 1e6
}

struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Axis {
    /// An axis from 0, or logarithmic if the largest value is over 20 times the smallest.
    fn of(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let largest = values.clone().fold(0.0, f64::max);
        let least = values.filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min);
        if largest <= 0.0 {
            return Axis {
                low: 0.0,
                high: 1.0,
                logarithmic: false,
            };
        }
        if largest / least > 20.0 {
            return Axis {
                low: round_down(least),
                high: nice_step(largest),
                logarithmic: true,
            };
        }
        let step = nice_step(largest / 6.0);
        Axis {
            low: 0.0,
            high: (largest / step).ceil() * step,
            logarithmic: false,
        }
    }

    fn of_recall(values: impl Iterator<Item = f64>) -> Axis {
        let least = values.fold(1.0, f64::min);
        let step = nice_step(((1.0 - least) / 6.0).max(0.001));
        Axis {
            low: ((least / step).floor() * step).max(0.0),
            high: 1.0,
            logarithmic: false,
        }
    }

    fn of_time(last: f64) -> Axis {
        let step = nice_step((last / 6.0).max(0.001));
        Axis {
            low: 0.0,
            high: (last / step).ceil().max(1.0) * step,
            logarithmic: false,
        }
    }

    fn place(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value.max(self.low).log10() - self.low.log10())
                / (self.high.log10() - self.low.log10())
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.low.log10().floor() as i32)..=(self.high.log10().ceil() as i32);
            return decades
                .flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(decade)))
                .filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick))
                .collect();
        }
        let step = nice_step((self.high - self.low) / 6.0);
        let first = (self.low / step).round() as i64;
        let last = (self.high / step + 0.001).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }
}

fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|digit| digit * power >= rough * 0.999)
        .unwrap_or(10.0);
    digit * power
}

fn round_down(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [5.0, 2.0]
        .into_iter()
        .find(|digit| digit * power <= value * 1.001);
    digit.unwrap_or(1.0) * power
}

fn label(value: f64) -> String {
    if value >= 1000.0 {
        return stratann_terminal::size::count(value.round() as u64);
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// Control characters are invalid in XML and are removed.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().filter(|c| !c.is_control()) {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// Draws the whole picture, as SVG.
pub fn svg(title: &str, subtitle: &str, across: &Across, lines: &[Line]) -> String {
    let timed: Vec<&Line> = lines.iter().filter(|l| !l.seconds.is_empty()).collect();
    if !timed.is_empty() {
        return over_time(title, subtitle, &timed);
    }
    let legend_top = TOP + PANEL.1 + BELOW;
    let mut out = head(title, subtitle, legend_top, lines.len());
    panel(
        &mut out,
        LEFTS[0],
        across,
        "reads a query (fewer is better)",
        lines,
        |p| p.reads,
    );
    panel(
        &mut out,
        LEFTS[1],
        across,
        "queries a second (more is better)",
        lines,
        |p| Some(p.qps),
    );
    for (i, line) in lines.iter().enumerate() {
        let note = if line.points.iter().all(|p| p.reads.is_none()) {
            " (reads not measured)"
        } else {
            ""
        };
        legend(&mut out, legend_top, i, line, note);
    }
    out.push_str("</svg>\n");
    out
}

type OfSecond = fn(&Span) -> Option<f64>;

/// Six panels over the seconds of a job of live updates, with dots during merges.
fn over_time(title: &str, subtitle: &str, lines: &[&Line]) -> String {
    const MB: f64 = 1e6;
    let rows: [[(&str, OfSecond); 2]; 3] = [
        [
            ("P50 latency in us", |s| latency_of(s, s.p50_us)),
            ("P99 latency in us", |s| latency_of(s, s.p99_us)),
        ],
        [
            ("inserts a second", |s| Some(s.rate(s.inserts))),
            ("searches a second", |s| Some(s.rate(s.searches))),
        ],
        [
            ("memory in MB", |s| Some(s.rss_bytes as f64 / MB)),
            ("on storage in MB", |s| Some(s.storage_bytes as f64 / MB)),
        ],
    ];
    let seconds = || lines.iter().flat_map(|line| &line.seconds);
    let last = seconds().map(|second| second.to).fold(0.0, f64::max);
    let row_height = LOW_PANEL + BELOW;
    let legend_top = TOP + rows.len() as f64 * row_height;
    let mut out = head(title, subtitle, legend_top, lines.len());
    for (row, panels) in rows.iter().enumerate() {
        for (left, (y_name, value)) in LEFTS.into_iter().zip(panels) {
            let values: Vec<f64> = seconds().filter_map(value).collect();
            let frame = Frame {
                left,
                top: TOP + row as f64 * row_height,
                height: LOW_PANEL,
                horizontal: Axis::of_time(last),
                vertical: Axis::of(values.iter().copied()),
                x_name: "seconds",
                y_name,
            };
            frame.draw(&mut out);
            for (i, line) in lines.iter().enumerate() {
                let shown = line.seconds.iter().filter_map(|s| Some((s, value(s)?)));
                let points: Vec<(f64, f64)> = shown.clone().map(|(s, v)| (s.to, v)).collect();
                frame.curve(&mut out, i, line, &points);
                for (second, value) in shown.filter(|(second, _)| second.merging) {
                    let tooltip = format!(
                        "{}, {:.0} s, a merge: {y_name} {}",
                        line.name,
                        second.to,
                        label((value * 10.0).round() / 10.0)
                    );
                    marker(&mut out, i, frame.x(second.to), frame.y(value), &tooltip);
                }
            }
        }
    }
    for (i, line) in lines.iter().enumerate() {
        let merges = line.seconds.iter().any(|second| second.merging);
        let note = if merges {
            " (dots: a merge is running)"
        } else {
            ""
        };
        legend(&mut out, legend_top, i, line, note);
    }
    out.push_str("</svg>\n");
    out
}

fn latency_of(second: &Span, us: f64) -> Option<f64> {
    (second.searches > 0).then_some(us)
}

fn head(title: &str, subtitle: &str, legend_top: f64, lines: usize) -> String {
    let rows = lines.div_ceil(2);
    let height = legend_top + rows as f64 * LEGEND_ROW + 12.0;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <title>{0}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{1}\" y=\"28\" font-size=\"18\" font-weight=\"600\">{0}</text>\n\
         <text x=\"{1}\" y=\"48\" fill=\"#666\">{2}</text>",
        escape(title),
        LEFTS[0],
        escape(subtitle)
    );
    out
}

fn legend(out: &mut String, top: f64, i: usize, line: &Line, note: &str) {
    let x = LEFTS[i % 2];
    let y = top + (i / 2) as f64 * LEGEND_ROW;
    let _ = writeln!(
        out,
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" {}/>",
        x + 30.0,
        stroke(i, line)
    );
    marker(out, i, x + 15.0, y, "");
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\">{}{note}</text>",
        x + 40.0,
        y + 4.5,
        escape(&line.name)
    );
}

/// Lines of other programs are dashed.
fn stroke(i: usize, line: &Line) -> String {
    let dash = if line.other {
        " stroke-dasharray=\"6 4\""
    } else {
        ""
    };
    format!(
        "fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{dash}",
        COLOURS[i % COLOURS.len()]
    )
}

/// The shape changes when the colours repeat.
fn marker(out: &mut String, i: usize, x: f64, y: f64, tooltip: &str) {
    let colour = COLOURS[i % COLOURS.len()];
    let tooltip = if tooltip.is_empty() {
        String::new()
    } else {
        format!("<title>{}</title>", escape(tooltip))
    };
    let _ = match i / COLOURS.len() % 3 {
        0 => writeln!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\">{tooltip}</circle>"
        ),
        1 => writeln!(
            out,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"8\" height=\"8\" fill=\"{colour}\">{tooltip}</rect>",
            x - 4.0,
            y - 4.0
        ),
        _ => writeln!(
            out,
            "<path d=\"M{x:.1} {:.1}l5 9h-10z\" fill=\"{colour}\">{tooltip}</path>",
            y - 5.0
        ),
    };
}

struct Frame<'a> {
    left: f64,
    top: f64,
    height: f64,
    horizontal: Axis,
    vertical: Axis,
    x_name: &'a str,
    y_name: &'a str,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + self.horizontal.place(value) * PANEL.0
    }

    fn y(&self, value: f64) -> f64 {
        self.top + (1.0 - self.vertical.place(value)) * self.height
    }

    fn draw(&self, out: &mut String) {
        let Self {
            left,
            top,
            height,
            horizontal,
            vertical,
            x_name,
            y_name,
        } = self;
        for tick in horizontal.ticks() {
            let at = self.x(tick);
            let bottom = top + height;
            let _ = writeln!(
                out,
                "<line x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                label(tick)
            );
        }
        for tick in vertical.ticks() {
            let at = self.y(tick);
            let _ = writeln!(
                out,
                "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#e4e4e4\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left + PANEL.0,
                left - 8.0,
                at + 4.5,
                label(tick)
            );
        }
        let scale = |axis: &Axis| match axis.logarithmic {
            true => ", logarithmic",
            false => "",
        };
        let y_scale = scale(vertical);
        let middle = top + height / 2.0;
        let _ = writeln!(
            out,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{height}\" fill=\"none\" stroke=\"#999\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" font-weight=\"600\">{x_name}{}</text>\n\
             <text x=\"{}\" y=\"{middle}\" text-anchor=\"middle\" font-weight=\"600\" \
             transform=\"rotate(-90 {} {middle})\">{y_name}{y_scale}</text>",
            PANEL.0,
            left + PANEL.0 / 2.0,
            top + height + 40.0,
            scale(horizontal),
            left - 66.0,
            left - 66.0,
        );
    }

    fn curve(&self, out: &mut String, i: usize, line: &Line, points: &[(f64, f64)]) {
        let path: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", self.x(*x), self.y(*y)))
            .collect();
        if path.len() > 1 {
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" {}/>",
                path.join(" "),
                stroke(i, line)
            );
        }
    }
}

fn panel(
    out: &mut String,
    left: f64,
    across: &Across,
    y_name: &str,
    lines: &[Line],
    value: fn(&Common) -> Option<f64>,
) {
    let points = || lines.iter().flat_map(|line| &line.points);
    let values: Vec<f64> = points().filter_map(value).collect();
    let frame = Frame {
        left,
        top: TOP,
        height: PANEL.1,
        horizontal: (across.axis)(&points().map(across.value).collect::<Vec<_>>()),
        vertical: Axis::of(values.iter().copied()),
        x_name: &across.name,
        y_name,
    };
    frame.draw(out);
    for (i, line) in lines.iter().enumerate() {
        let shown: Vec<_> = line
            .points
            .iter()
            .filter_map(|p| Some((p, value(p)?)))
            .collect();
        let at = |point: &Common| (across.value)(point);
        let points: Vec<(f64, f64)> = shown.iter().map(|(p, v)| (at(p), *v)).collect();
        frame.curve(out, i, line, &points);
        for (point, value) in shown {
            let tooltip = format!(
                "{}, {}, {y_name} {}",
                line.name,
                (across.point)(point),
                label((value * 10.0).round() / 10.0)
            );
            marker(out, i, frame.x(at(point)), frame.y(value), &tooltip);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, Option<f64>, f64)]) -> Line {
        Line {
            name: name.into(),
            other: false,
            points: points
                .iter()
                .enumerate()
                .map(|(i, (recall, reads, qps))| Common {
                    list: i * 10,
                    recall: *recall,
                    qps: *qps,
                    reads: *reads,
                    mean_us: None,
                    p99_us: None,
                    memory: None,
                })
                .collect(),
            seconds: Vec::new(),
        }
    }

    #[test]
    fn axes_hold_their_values() {
        for values in [
            vec![38.0, 116.0],
            vec![1.0, 30_000.0],
            vec![0.0],
            vec![],
            vec![0.3],
            vec![350.0, 33_100.0],
        ] {
            let axis = Axis::of(values.iter().copied());
            for value in values.iter().filter(|v| **v > 0.0) {
                assert!((-0.001..=1.001).contains(&axis.place(*value)), "{value}");
            }
            let ticks = axis.ticks();
            assert!((2..=20).contains(&ticks.len()), "{values:?}: {ticks:?}");
        }
        let recall = Axis::of_recall([0.923, 0.996].into_iter());
        assert!(recall.low <= 0.923 && recall.low > 0.85 && recall.high == 1.0);
        assert_eq!(Axis::of_recall([1.0].into_iter()).high, 1.0);
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(nice_step(0.013), 0.02);
        assert_eq!(nice_step(19.3), 20.0);
        assert_eq!(nice_step(1.0), 1.0);
        assert_eq!(round_down(351.0), 200.0);
        assert_eq!(round_down(1.0), 1.0);
        assert_eq!(label(0.95), "0.95");
        assert_eq!(label(20_000.0), "20,000");
    }

    #[test]
    fn across_memory() {
        let mut budgets = line(
            "stratann",
            &[(0.97, Some(20.0), 900.0), (0.97, Some(10.0), 2000.0)],
        );
        budgets.points[0].memory = Some(48_000_000);
        budgets.points[1].memory = Some(256_000_000);
        let picture = svg("memory", "machine", &Across::memory(), &[budgets]);
        assert!(picture.contains("memory budget in MB") && picture.contains(">100</text>"));
        assert!(
            picture.contains("stratann, 48 MB: recall 0.97"),
            "{picture}"
        );
    }

    #[test]
    fn over_time_a_line_a_run() {
        let second = |second: f64, p50_us, merging| Span {
            from: second,
            to: second + 1.0,
            searches: 900,
            inserts: if merging { 0 } else { 3_000 },
            p50_us,
            p99_us: 2.0 * p50_us,
            rss_bytes: 80_000_000,
            storage_bytes: 400_000_000,
            merging,
            ..Span::default()
        };
        let run = |name: &str, merging| Line {
            name: name.into(),
            other: false,
            points: Vec::new(),
            seconds: (0..60)
                .map(|s| second(s as f64, 480.0, merging && s > 30))
                .collect(),
        };
        let lines = [run("stratann", false), run("diskann <merging>", true)];
        let picture = svg("live", "machine", &Across::recall(10), &lines);
        for name in [
            "P50",
            "P99",
            "inserts a second",
            "searches a second",
            "memory in MB",
            "on storage in MB",
            "seconds",
        ] {
            assert!(picture.contains(name), "{name}");
        }
        assert_eq!(picture.matches("<polyline").count(), 12);
        // Each panel has a dot for each second of the merge, and the legend one for each run.
        assert_eq!(picture.matches("<circle").count(), 29 * 6 + 2);
        assert!(picture.contains("diskann &lt;merging&gt;, 32 s, a merge: P50"));
        assert!(picture.contains("dots: a merge is running") && picture.contains(">60</text>"));
        assert!(!picture.contains("NaN") && !picture.contains("recall@10"));
    }

    #[test]
    fn well_formed_whatever_the_names() {
        let picture = svg(
            "a <b> & \"c\"",
            "machine",
            &Across::recall(10),
            &[
                line(
                    "x < y",
                    &[(0.9, Some(30.0), 1000.0), (0.95, Some(40.0), 700.0)],
                ),
                line("memory", &[(0.94, None, 33_000.0)]),
                line("empty", &[]),
            ],
        );
        assert!(
            picture.contains("a &lt;b&gt; &amp; &quot;c&quot;") && picture.contains("x &lt; y")
        );
        assert!(picture.contains("reads not measured"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        for tag in ["svg", "text", "circle", "title"] {
            let opened = picture.matches(&format!("<{tag} ")).count()
                + picture.matches(&format!("<{tag}>")).count();
            assert_eq!(
                opened,
                picture.matches(&format!("</{tag}>")).count(),
                "{tag}"
            );
        }
    }
}
