//! Ids as a user writes them: decimal numbers between spaces, commas or line ends, or a numpy
//! array.

use std::path::{Path, PathBuf};

use stratann_terminal::failure::Failure;

use crate::pipe;

/// Reads ids from a file. `-` is the standard input, and `.npy` a numpy array.
pub fn read(path: &Path) -> Result<Vec<u64>, Failure> {
    let is_array = |extension: &std::ffi::OsStr| extension.eq_ignore_ascii_case("npy");
    if path.extension().is_some_and(is_array) {
        return Ok(stratann::data::read_ids(path)?);
    }
    let text = match pipe::is_one(path)? {
        true => {
            let mut bytes = Vec::new();
            pipe::read(path, |part| {
                bytes.extend_from_slice(part);
                Ok(())
            })?;
            String::from_utf8(bytes).map_err(std::io::Error::other)
        }
        false => std::fs::read_to_string(path),
    };
    let text = text.map_err(|error| Failure::file("read", path, &error))?;
    parse(&text).map_err(|(line, word)| {
        Failure::Wrong(format!(
            "{}, line {line}: '{word}' is not an id. Write whole numbers from 0 to 18446744073709551614",
            path.display()
        ))
    })
}

/// Reads ids from words or a file. Refuses a word that is both an id and the name of a file.
pub fn given(words: &[PathBuf], file: Option<&Path>) -> Result<Option<Vec<u64>>, Failure> {
    let id_of = |word: &PathBuf| word.to_str().and_then(|word| one(word).ok());
    match (words, file) {
        (_, Some(file)) => read(file).map(Some),
        ([], None) => Ok(None),
        ([word], None) if id_of(word).is_none() => match word.as_os_str() == "-" || word.exists() {
            true => read(word).map(Some),
            false if is_number(word) => Err(no_id(word)),
            false if word.as_os_str().is_empty() => Err(Failure::Wrong(
                "an id is empty. Write whole numbers from 0 to 18446744073709551614, or name one file of ids".to_owned(),
            )),
            false => Err(Failure::Failed(format!(
                "'{}' is no id, and no file has that name. Check the path, or write whole numbers from 0 to 18446744073709551614 with spaces between them",
                word.display()
            ))),
        },
        (words, None) => {
            let ids = words.iter().map(|word| match id_of(word) {
                Some(_) if word.exists() => Err(Failure::Wrong(format!(
                    "'{0}' is an id and the name of a file. For the file give ./{0}; for the id give - and {0} on the standard input",
                    word.display()
                ))),
                Some(id) => Ok(id),
                None => Err(no_id(word)),
            });
            ids.collect::<Result<Vec<u64>, Failure>>().map(Some)
        }
    }
}

/// A number that is too large for an id counts too.
fn is_number(word: &Path) -> bool {
    let text = word.to_str().unwrap_or_default();
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn no_id(word: &Path) -> Failure {
    Failure::Wrong(format!(
        "'{}' is not an id. Write whole numbers from 0 to 18446744073709551614, or name one file of ids",
        word.display()
    ))
}

pub fn one(word: &str) -> Result<u64, String> {
    let id = word.parse().ok().filter(|&id| id != u64::MAX);
    id.ok_or_else(|| "give a whole number from 0 to 18446744073709551614".to_owned())
}

/// The error has the line and the word that is no id.
fn parse(text: &str) -> Result<Vec<u64>, (usize, String)> {
    let mut ids = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let words = text.split(|c: char| c.is_whitespace() || c == ',');
        for word in words.filter(|word| !word.is_empty()) {
            // The largest number stands for a missing result, so it is no valid id.
            ids.push(one(word).map_err(|_| (line, word.to_owned()))?);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_word_is_neither_a_number_nor_a_file() {
        let refused = |word: &str| given(&[word.into()], None).unwrap_err();
        for (word, text) in [
            ("", "an id is empty. "),
            ("18446744073709551615", "is not an id. "),
        ] {
            assert!(!is_number(Path::new("")) && is_number(Path::new("12")));
            match refused(word) {
                Failure::Wrong(said) => assert!(said.contains(text), "{said}"),
                failure => panic!("{word:?}: {failure:?}"),
            }
        }
        assert!(matches!(refused("no/such"), Failure::Failed(_)));
    }

    #[test]
    fn ids_stand_in_lines_or_beside_each_other() {
        assert_eq!(
            parse("1\n2, 3\t18446744073709551614\r\n\n"),
            Ok(vec![1, 2, 3, u64::MAX - 1])
        );
        assert_eq!(parse(""), Ok(vec![]));
        assert_eq!(parse("1\n-2"), Err((2, "-2".into())));
        assert_eq!(
            parse("1 2 18446744073709551616"),
            Err((1, "18446744073709551616".into()))
        );
        assert_eq!(
            parse("7\n18446744073709551615"),
            Err((2, "18446744073709551615".into()))
        );
    }
}
