//! `--config FILE` of servers: options, over which the command line takes precedence.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue};
use toml::de::DeTable;

use stratann_terminal::failure::Failure;

const SERVERS: [&str; 4] = [
    "memory-server",
    "storage-server",
    "compute-server",
    "cluster",
];

/// A command line with the options of `--config`.
#[derive(Debug)]
pub struct Expanded {
    /// Words from the file follow the name of the command.
    pub words: Vec<OsString>,
    said: Option<Said>,
}

#[derive(Debug)]
struct Said {
    file: PathBuf,
    lines: Vec<(String, usize)>,
}

impl Expanded {
    /// A note with the line of the file, if clap refused an argument from the file.
    pub fn note(&self, error: &clap::Error) -> Option<String> {
        let said = self.said.as_ref()?;
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
            return None;
        };
        let own = |name: &str| {
            let rest = argument
                .strip_prefix("--")
                .and_then(|argument| argument.strip_prefix(name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '=']))
        };
        let (name, line) = said.lines.iter().find(|(name, _)| own(name))?;
        let file = said.file.display();
        Some(format!(
            "note: this option is `{name}` in {file}, line {line}"
        ))
    }
}

/// Inserts the options of `--config` after the name of the command.
pub fn expanded(words: Vec<OsString>, arguments: &clap::Command) -> Result<Expanded, Failure> {
    let as_typed = |words| Expanded { words, said: None };
    let command = words
        .iter()
        .position(|word| SERVERS.iter().any(|name| word == name));
    let Some(mut command) = command else {
        return Ok(as_typed(words));
    };
    let mut known = words[command]
        .to_str()
        .and_then(|name| arguments.find_subcommand(name));
    if words[command] == "cluster" {
        // Options of all commands may precede the name `up` or `search`.
        let mut behind = words.iter().enumerate().skip(command + 1);
        let found = behind.find_map(|(at, word)| {
            let of = known.and_then(|of| of.find_subcommand(word.to_str()?));
            of.map(|of| (at, of))
        });
        match found {
            Some((at, of)) => (command, known) = (at, Some(of)),
            None => known = None,
        }
    }
    let mut file = None;
    for (at, word) in words.iter().enumerate() {
        match word.to_str() {
            Some("--config") => file = words.get(at + 1).cloned(),
            Some(word) => {
                if let Some(path) = word.strip_prefix("--config=") {
                    file = Some(path.into());
                }
            }
            None => {}
        }
    }
    let (Some(file), Some(known)) = (file, known) else {
        return Ok(as_typed(words));
    };
    let path = PathBuf::from(file);
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| Failure::file("read", &path, &error))?;
    let mut said =
        options(&text, known).map_err(|why| Failure::Wrong(format!("{}{why}", path.display())))?;
    said.retain(|option| !option.is_typed(&words));
    let lines = said
        .iter()
        .map(|option| (option.name.clone(), option.line))
        .collect();
    let mut all = words.clone();
    let behind = (command + 1).min(all.len());
    all.splice(
        behind..behind,
        said.into_iter().map(|option| option.word.into()),
    );
    Ok(Expanded {
        words: all,
        said: Some(Said { file: path, lines }),
    })
}

#[derive(Debug, PartialEq, Eq)]
struct FileOption {
    name: String,
    line: usize,
    word: String,
    short: Option<char>,
}

impl FileOption {
    fn is_typed(&self, words: &[OsString]) -> bool {
        let long = |word: &str| {
            let rest = word
                .strip_prefix("--")
                .and_then(|word| word.strip_prefix(&*self.name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let short = |word: &str| {
            let rest = word.strip_prefix('-').and_then(|word| word.chars().next());
            rest.is_some() && rest == self.short
        };
        let mut words = words.iter().filter_map(|word| word.to_str());
        words.any(|word| long(word) || short(word))
    }
}

/// The text of an error continues a sentence that begins with the name of the file.
fn options(text: &str, command: &clap::Command) -> Result<Vec<FileOption>, String> {
    let parsed = DeTable::parse(text).map_err(|error| format!(" is no valid TOML: {error}"))?;
    let values: toml::Table = text
        .parse()
        .map_err(|error| format!(" is no valid TOML: {error}"))?;
    let mut options = Vec::new();
    for key in parsed.get_ref().keys() {
        let typed = key.get_ref().to_string();
        // TOML files use `_` as well as `-` in names.
        let name = typed.replace('_', "-");
        let line = 1 + text[..key.span().start].matches('\n').count();
        let wrong = |what: &str| Err(format!(", line {line}: {typed}: {what}"));
        if options
            .iter()
            .any(|option: &FileOption| option.name == name)
        {
            return wrong("the option is given twice, once with `-` and once with `_`. Remove one");
        }
        if name == "config" {
            return wrong(
                "a file of options cannot name another file of options. Remove this option",
            );
        }
        let known = command
            .get_arguments()
            .find(|known| known.get_long() == Some(&*name));
        let takes_value = known.is_some_and(|known| known.get_action().takes_values());
        let word = match values.get(&typed) {
            Some(toml::Value::Table(_)) => {
                return wrong(
                    "an option cannot be a table. Write it without [table] headers and dots",
                );
            }
            Some(toml::Value::Boolean(_)) if takes_value => {
                return wrong(
                    "the option takes a value, but the file has true or false. Write a text or a number",
                );
            }
            // A known option that is false is left out. An unknown name is passed on, so that
            // clap's error can suggest a similar option.
            Some(toml::Value::Boolean(false)) if known.is_some() => continue,
            Some(toml::Value::Boolean(_)) => format!("--{name}"),
            Some(toml::Value::String(text)) => format!("--{name}={text}"),
            Some(toml::Value::Integer(number)) => format!("--{name}={number}"),
            Some(toml::Value::Float(number)) => format!("--{name}={number}"),
            _ => return wrong("an option has one value. Write a text, a number, true or false"),
        };
        let short = known.and_then(clap::Arg::get_short);
        options.push(FileOption {
            name,
            line,
            word,
            short,
        });
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    fn all() -> clap::Command {
        let mut all = Arguments::command();
        all.build();
        all
    }

    fn server() -> clap::Command {
        all().find_subcommand("compute-server").unwrap().clone()
    }

    #[test]
    fn a_file_says_what_could_be_typed() {
        let text =
            "listen = \"127.0.0.1:0\"\nthreads = 3\nrefine = 0.25\ntls = true\nno-batch = false\n";
        let all = options(text, &server()).unwrap();
        let mut words: Vec<&str> = all.iter().map(|option| &*option.word).collect();
        words.sort();
        let expected = [
            "--listen=127.0.0.1:0",
            "--refine=0.25",
            "--threads=3",
            "--tls",
        ];
        assert_eq!(words, expected);
        let threads = all.iter().find(|option| option.name == "threads");
        assert_eq!(threads.unwrap().line, 2);
        for (text, said) in [
            (
                "tls = true\nlisten = [1]",
                ", line 2: listen: an option has one value. Write a text",
            ),
            ("config = \"x\"", ", line 1: config: "),
            // As a flag, `--listen` would take the next word as its value.
            (
                "listen = true",
                ", line 1: listen: the option takes a value, but the file has true or false",
            ),
            ("listen", " is no valid TOML: "),
            (
                "threads = 3\n[server]\nbeam = 4\n",
                ", line 2: server: an option cannot be a table",
            ),
            (
                "low_list = 3.0\nlow-list = 2.0\n",
                ", line 1: low_list: the option is given twice",
            ),
        ] {
            let found = options(text, &server()).unwrap_err();
            assert!(found.starts_with(said), "{found}");
        }
        let underscored = options("low_list = 2.5\n", &server()).unwrap();
        assert_eq!(underscored[0].word, "--low-list=2.5");
        assert_eq!(options("quiet = false", &server()), Ok(Vec::new()));
        // An unknown option is never ignored.
        assert_eq!(options("tsl = false", &server()).unwrap()[0].word, "--tsl");
    }

    #[test]
    fn they_stand_behind_the_command() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, "\nthreads = 3").unwrap();
        let expanded = |words: &[&str]| {
            let words = words.iter().map(OsString::from).collect::<Vec<_>>();
            super::expanded(words, &all())
        };
        let path = file.to_str().unwrap();
        let found = expanded(&["stratann", "storage-server", "--config", path, "i"]).unwrap();
        assert_eq!(found.words[2], "--threads=3");
        let found = expanded(&["stratann", "cluster", "up", "i", "--config", path]).unwrap();
        assert_eq!(found.words[3], "--threads=3");
        let words = ["stratann", "cluster", "-q", "up", "i", "--config", path];
        assert_eq!(expanded(&words).unwrap().words[4], "--threads=3");
        let words = ["stratann", "search", "i", "q"];
        assert_eq!(expanded(&words).unwrap().words, words);
        assert!(expanded(&["stratann", "storage-server", "--config", "none"]).is_err());
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        std::fs::write(&file, "threads = 3\nlistn = \"x\"\n").unwrap();
        let path = file.to_str().unwrap();
        let note = |words: &[&str]| {
            let words = words.iter().map(OsString::from).collect();
            let expanded = super::expanded(words, &all()).unwrap();
            let error = Arguments::command().try_get_matches_from(&expanded.words);
            expanded.note(&error.unwrap_err())
        };
        let said = format!("note: this option is `listn` in {path}, line 2");
        let words = ["stratann", "storage-server", "i", "--config", path];
        assert_eq!(note(&words), Some(said));
        // The error is about an option of the command line, given by its long or short name.
        std::fs::write(&file, "threads = 0\n").unwrap();
        for typed in ["--threads=x", "-Tx"] {
            assert_eq!(note(&[&words[..], &[typed]].concat()), None);
        }
        std::fs::write(&file, "threads = 0\n").unwrap();
        let said = format!("note: this option is `threads` in {path}, line 1");
        assert_eq!(note(&words), Some(said));
    }
}
