//! A server's condition, as text for the health page and for Prometheus.

use std::fmt::Write;

use crate::link::Traffic;

/// The requested page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The health of the server, which may ask other servers first.
    Health,
    /// The figures of the server.
    Metrics,
}

/// A server's condition.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The obstacle that keeps the server from its work, if any.
    pub trouble: Option<String>,
    /// The condition of the servers that this server needs, a line each.
    pub lines: Vec<String>,
    /// The figures of the server.
    pub figures: Vec<Figure>,
}

/// A count or a gauge.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The name, without the common prefix.
    pub name: &'static str,
    /// The description.
    pub about: &'static str,
    /// Whether the value may fall.
    pub is_gauge: bool,
    /// The kind of peer, for figures of connections.
    pub peer: Option<&'static str>,
    /// The server, if one address reports several servers.
    pub server: Option<String>,
    /// The value.
    pub value: u64,
}

impl Report {
    /// Adds a count, which never falls.
    pub fn count(&mut self, name: &'static str, about: &'static str, value: u64) {
        self.add(name, about, false, None, value);
    }

    /// Adds a gauge: a current value.
    pub fn gauge(&mut self, name: &'static str, about: &'static str, value: u64) {
        self.add(name, about, true, None, value);
    }

    /// Adds a gauge about a kind of peer.
    pub fn gauge_with(
        &mut self,
        name: &'static str,
        about: &'static str,
        peer: &'static str,
        value: u64,
    ) {
        self.add(name, about, true, Some(peer), value);
    }

    /// Adds another server: `name` precedes its texts, and its figures have the label `server`.
    pub fn join(&mut self, name: &str, label: &str, other: Report) {
        let named = |text: String| format!("{name}: {text}");
        self.trouble = self.trouble.take().or(other.trouble.map(named));
        self.lines.extend(other.lines.into_iter().map(named));
        let figures = other.figures.into_iter();
        self.figures.extend(figures.map(|figure| Figure {
            server: Some(label.to_owned()),
            ..figure
        }));
    }

    pub(super) fn health(&self) -> (u16, String) {
        let (status, first) = match &self.trouble {
            None => (200, "well"),
            Some(trouble) => (503, trouble.as_str()),
        };
        let lines = std::iter::once(first).chain(self.lines.iter().map(String::as_str));
        (status, lines.flat_map(|line| [line, "\n"]).collect())
    }

    fn add(
        &mut self,
        name: &'static str,
        about: &'static str,
        is_gauge: bool,
        peer: Option<&'static str>,
        value: u64,
    ) {
        self.figures.push(Figure {
            name,
            about,
            is_gauge,
            peer,
            server: None,
            value,
        });
    }

    /// Adds the counts of connections with a kind of peer.
    pub fn traffic(&mut self, peer: &'static str, traffic: Traffic) {
        for (name, about, value) in [
            (
                "messages_sent_total",
                "Messages that were sent",
                traffic.sent,
            ),
            ("writes_total", "Writes that sent messages", traffic.writes),
            (
                "bytes_sent_total",
                "Bytes of sent messages",
                traffic.bytes_sent,
            ),
            (
                "messages_received_total",
                "Messages that were received",
                traffic.received,
            ),
            ("reads_total", "Reads that received messages", traffic.reads),
            (
                "bytes_received_total",
                "Bytes of received messages",
                traffic.bytes_received,
            ),
        ] {
            self.add(name, about, false, Some(peer), value);
        }
    }

    /// The text format 0.0.4 of Prometheus, with all figures of one name together.
    pub(super) fn metrics(&self) -> String {
        let mut out = String::new();
        let mut names: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if names.contains(&figure.name) {
                continue;
            }
            names.push(figure.name);
            let kind = if figure.is_gauge { "gauge" } else { "counter" };
            let _ = writeln!(
                out,
                "# HELP stratann_{0} {1}.\n# TYPE stratann_{0} {kind}",
                figure.name, figure.about
            );
            let all = self.figures.iter();
            for same in all.filter(|other| other.name == figure.name) {
                let server = same.server.as_deref().map(|server| ("server", server));
                let labels = server
                    .into_iter()
                    .chain(same.peer.map(|peer| ("peer", peer)));
                let labels: Vec<String> = labels
                    .map(|(label, value)| format!("{label}=\"{value}\""))
                    .collect();
                let labels = match labels.is_empty() {
                    true => String::new(),
                    false => format!("{{{}}}", labels.join(",")),
                };
                let _ = writeln!(out, "stratann_{}{labels} {}", same.name, same.value);
            }
        }
        out
    }
}
