//! How a server is, as health says it and as Prometheus reads it.

use std::fmt::Write;

use crate::link::Traffic;

/// What is asked for over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Whether it is well, for which it may ask others.
    Health,
    /// Its figures.
    Metrics,
}

/// How a server is.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Why it cannot do what it is for, if so.
    pub trouble: Option<String>,
    /// What else health says: how the servers are that it asks.
    pub lines: Vec<String>,
    /// What it has counted.
    pub figures: Vec<Figure>,
}

/// Something that was counted.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name, without what all of them begin with.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// Whether it may become less.
    pub is_gauge: bool,
    /// With whom, for figures of connections.
    pub peer: Option<&'static str>,
    /// Of which server, where one address tells of several.
    pub server: Option<String>,
    /// How much.
    pub value: u64,
}

impl Report {
    /// Adds a count that only grows.
    pub fn count(&mut self, name: &'static str, about: &'static str, value: u64) {
        self.add(name, about, false, None, value);
    }

    /// Adds what is now.
    pub fn gauge(&mut self, name: &'static str, about: &'static str, value: u64) {
        self.add(name, about, true, None, value);
    }

    /// Adds what is now with some other servers.
    pub fn gauge_with(
        &mut self,
        name: &'static str,
        about: &'static str,
        peer: &'static str,
        value: u64,
    ) {
        self.add(name, about, true, Some(peer), value);
    }

    /// Takes in what another server of this process tells: what it says is behind its `name`, and its figures have `label` for their label `server`.
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

    /// What health says.
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

    /// Adds what went through connections with some other servers.
    pub fn traffic(&mut self, peer: &'static str, traffic: Traffic) {
        for (name, about, value) in [
            (
                "messages_sent_total",
                "Messages that were sent",
                traffic.sent,
            ),
            ("writes_total", "Writes that these went in", traffic.writes),
            ("bytes_sent_total", "Their bytes", traffic.bytes_sent),
            (
                "messages_received_total",
                "Messages that came",
                traffic.received,
            ),
            ("reads_total", "Reads that brought these", traffic.reads),
            (
                "bytes_received_total",
                "Their bytes",
                traffic.bytes_received,
            ),
        ] {
            self.add(name, about, false, Some(peer), value);
        }
    }

    /// As Prometheus reads it (text format 0.0.4): the figures of a name stand together.
    pub(super) fn metrics(&self) -> String {
        let mut out = String::new();
        let mut names: Vec<&str> = Vec::new();
        for figure in &self.figures {
            if names.contains(&figure.name) {
                continue;
            }
            names.push(figure.name);
            let kind = if figure.is_gauge { "gauge" } else { "counter" };
            // Writing to a string cannot fail.
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
