//! Names that are like a name that does not exist: the one rule for all suggestions in errors and
//! warnings.
//!
//! The distance of two names is the number of edits that turn one into the other: a letter is
//! added, missing or replaced, or two neighbours are swapped. Case does not matter.

use strsim::damerau_levenshtein;

/// The shortest names that [`is_slip`] compares. Many shorter names differ by only one edit.
const LEAST_NAME: usize = 3;

/// The name that a user meant by `typed`, if one of the names is near enough: with at most one edit
/// for every three letters of the longer name, and not only edits.
pub fn meant<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = |name: &str| name.chars().count();
    let near = names.into_iter().filter_map(|name| {
        let longer = length(name).max(length(typed));
        let edits = edits(typed, name);
        (edits <= longer.div_ceil(3) && edits < longer.max(1)).then_some((edits, name))
    });
    near.min().map(|(_, name)| name)
}

/// The number of edits between two names.
pub(crate) fn edits(one: &str, other: &str) -> usize {
    damerau_levenshtein(&one.to_lowercase(), &other.to_lowercase())
}

/// Whether a new name beside an old one is probably a slip: they differ by one edit, or only in
/// case. False if only digits differ, since numbered names are no slips.
pub(crate) fn is_slip(new: &str, old: &str) -> bool {
    let letters = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let shorter = new.chars().count().min(old.chars().count());
    shorter >= LEAST_NAME && letters(new) != letters(old) && edits(new, old) <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, count) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("Photos", "photos", 0),
            ("photo", "photos", 1),
            ("phtoos", "photos", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edits(a, b), count, "{a} {b}");
            assert_eq!(edits(b, a), count, "{b} {a}");
        }
    }

    #[test]
    fn the_nearest_name_is_meant_if_it_is_near() {
        let names = ["about", "taken", "price", "k"];
        for (typed, expected) in [
            ("abuot", Some("about")),
            ("Taken", Some("taken")),
            ("prize", Some("price")),
            ("pr", None),
            ("x", None),
            ("", None),
            ("colour", None),
        ] {
            assert_eq!(meant(typed, names), expected, "{typed}");
        }
        assert_eq!(meant("", []), None);
    }

    #[test]
    fn a_name_that_differs_by_one_edit_is_a_slip() {
        for (one, other, expected) in [
            ("colour", "color", true),
            ("color", "colour", true),
            ("colr", "color", true),
            ("xolor", "color", true),
            ("coolr", "color", true),
            ("colorx", "color", true),
            ("Color", "color", true),
            ("größe", "große", true),
            ("color", "color", false),
            ("colxx", "color", false),
            ("roloc", "color", false),
            ("tag1", "tag2", false),
            ("tag", "tag2", false),
            ("id", "ids", false),
            ("ab", "ba", false),
            ("", "a", false),
            ("aaa", "aaaa", true),
        ] {
            assert_eq!(is_slip(one, other), expected, "{one}, {other}");
        }
    }
}
