//! Ids as a user writes them: decimal numbers with spaces, commas or line ends between them, or an array of numpy.

use std::io::Read;
use std::path::Path;

use stratann_terminal::failure::Failure;

/// Reads ids from a file; `-` is the standard input, and `.npy` an array of numpy.
pub fn read(path: &Path) -> Result<Vec<u64>, Failure> {
    let is_array = |extension: &std::ffi::OsStr| extension.eq_ignore_ascii_case("npy");
    if path.extension().is_some_and(is_array) {
        return Ok(stratann::data::read_ids(path)?);
    }
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|error| Failure::file("read", path, &error))?;
    parse(&text).map_err(|(line, word)| {
        Failure::Wrong(format!(
            "{}, line {line}: '{word}' is not an id: write whole numbers from 0 to 18446744073709551614",
            path.display()
        ))
    })
}

/// One id, as an argument.
pub fn one(word: &str) -> Result<u64, String> {
    let id = word.parse().ok().filter(|&id| id != u64::MAX);
    id.ok_or_else(|| "write a whole number from 0 to 18446744073709551614".to_owned())
}

/// The ids in a text, or the line and the word that is none.
fn parse(text: &str) -> Result<Vec<u64>, (usize, String)> {
    let mut ids = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let words = text.split(|c: char| c.is_whitespace() || c == ',');
        for word in words.filter(|word| !word.is_empty()) {
            // The last number of 64 bits stands for "no answer".
            ids.push(one(word).map_err(|_| (line, word.to_owned()))?);
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

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
