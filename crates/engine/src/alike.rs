//! Finds names that resemble a name that does not exist. All suggestions in errors follow this
//! rule.
//!
//! The distance of two names is the number of edits: to add, remove or replace a letter, or to swap
//! two neighbouring letters. Case does not matter.

use strsim::damerau_levenshtein;

/// [`is_slip`] does not compare shorter names, since many of them differ by one edit.
const LEAST_NAME: usize = 3;

/// Returns the name that a user meant by `typed`: the nearest name with at most one edit for every
/// three letters, or one edit if the names are short. Otherwise `typed` may abbreviate a name: it
/// has the first letter of the name, and others in order.
pub fn meant<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.into_iter().collect();
    let length = |name: &str| name.chars().count();
    let near = names.iter().filter_map(|&name| {
        let longer = length(name).max(length(typed));
        let edits = edits(typed, name);
        (edits <= (longer / 3).max(1) && edits < longer.max(1)).then_some((edits, name))
    });
    let near = near.min().map(|(_, name)| name);
    let abbreviated = names.into_iter().filter(|name| abbreviates(typed, name));
    near.or_else(|| abbreviated.min_by_key(|name| length(name)))
}

/// `short` begins with the first letter of `long`, and has other letters of `long` in order.
fn abbreviates(short: &str, long: &str) -> bool {
    let (short, long) = (short.to_lowercase(), long.to_lowercase());
    let mut letters = long.chars();
    let first = short.chars().next();
    short.chars().count() >= LEAST_NAME
        && first == long.chars().next()
        && short
            .chars()
            .all(|wanted| letters.any(|letter| letter == wanted))
}

pub(crate) fn edits(one: &str, other: &str) -> usize {
    damerau_levenshtein(&one.to_lowercase(), &other.to_lowercase())
}

/// A new name is probably a typing error if it differs by one edit or in case, but not only in
/// digits.
pub(crate) fn is_slip(new: &str, old: &str) -> bool {
    let letters = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let (one, other): (Vec<char>, Vec<char>) = (
        new.chars().flat_map(char::to_lowercase).collect(),
        old.chars().flat_map(char::to_lowercase).collect(),
    );
    // Equal ends do not change the distance. Without equal ends, most pairs need no computation.
    let shorter = one.len().min(other.len());
    let front = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let back = one.iter().rev().zip(other.iter().rev());
    let back = back
        .take(shorter - front)
        .take_while(|(a, b)| a == b)
        .count();
    let rest = one.len().max(other.len()) - front - back;
    shorter >= LEAST_NAME && rest <= 2 && letters(new) != letters(old) && edits(new, old) <= 1
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
            ("prc", Some("price")),
            ("tkn", Some("taken")),
            ("rice", Some("price")),
            ("path", None),
            ("x", None),
            ("", None),
            ("colour", None),
        ] {
            assert_eq!(meant(typed, names), expected, "{typed}");
        }
        assert_eq!(meant("", []), None);
        let names = ["path", "memory", "list_size", "attributes", "dimension"];
        for (typed, expected) in [
            ("mem", Some("memory")),
            ("list", Some("list_size")),
            ("attrs", Some("attributes")),
            ("dims", Some("dimension")),
            ("put", None),
        ] {
            assert_eq!(meant(typed, names), expected, "{typed}");
        }
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
