//! Parses the text of a filter. The grammar is:
//!
//! ```text
//!   filter   all ("or" all)*
//!   all      one ("and" one)*
//!   one      "not" one | "(" filter ")" | "true" | "false" | "exists" name | name asks
//!   asks     ("==" | "!=" | "<" | "<=" | ">" | ">=") value | ("==" | "!=") "null"
//!            | "between" value "and" value | ["not"] "in" values
//!            | "contains" (value | ("any" | "all") values)
//!   values   "[" [value ("," value)*] "]"
//!   value    "true" | "false" | number | "inf" | "-inf" | text | "timestamp" "(" number ")"
//! ```

use stratann_layout::attributes::Value;

use super::{
    Asks, Comparison, Filter, FilterColumn, MOST_DEPTH, MOST_TERMS, MOST_TEXT, MOST_VALUES, Place,
    RESERVED,
};
use crate::Error;

const SHOWN: usize = 40;

pub(super) fn begins_word(char: char) -> bool {
    char.is_alphabetic() || char == '_'
}

pub(super) fn is_in_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_' || char == '.'
}

pub(super) fn parse(text: &str) -> Result<Filter, Error> {
    if text.len() > MOST_TEXT {
        let reason = format!(
            "its text has {} bytes; at most {MOST_TEXT} are possible",
            text.len()
        );
        return Err(Place::default().error(reason));
    }
    let mut parser = Parser {
        lexer: Lexer { text, at: 0 },
        token: Token::End,
        begin: 0,
        depth: 0,
        terms: 0,
        values: 0,
    };
    parser.advance()?;
    let filter = parser.any()?;
    match parser.token {
        Token::End => Ok(filter),
        _ => Err(parser.unexpected("and, or, or the end")),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    /// A name in backticks.
    Name(String),
    Text(String),
    Number(&'a str),
    Symbol(&'a str),
    End,
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

/// Longer symbols come first. Some symbols are invalid, and errors suggest valid ones for them.
const SYMBOLS: [&str; 19] = [
    "==", "!=", "<=", ">=", "<>", "&&", "||", "=~", "(", ")", "[", "]", ",", "<", ">", "=", "!",
    "-", "+",
];

impl<'a> Lexer<'a> {
    fn place(&self, at: usize) -> Place {
        let before = self.text.get(..at).unwrap_or(self.text);
        Place(Some(before.chars().count() + 1))
    }

    fn shown(&self, at: usize) -> String {
        let rest = self.text.get(at..).unwrap_or_default();
        match rest.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{:?}..", &rest[..end]),
            None => format!("{rest:?}"),
        }
    }

    fn next(&mut self) -> Result<(usize, Token<'a>), Error> {
        let rest = &self.text[self.at..];
        let trimmed = rest.trim_start();
        self.at += rest.len() - trimmed.len();
        let begin = self.at;
        let Some(first) = trimmed.chars().next() else {
            return Ok((begin, Token::End));
        };
        let token = match first {
            '"' | '\'' => self.quoted(first)?,
            '`' => self.name()?,
            _ if begins_word(first) => Token::Word(self.run(trimmed, is_in_word)),
            _ if first.is_ascii_digit() || (first == '-' && second_is_digit(trimmed)) => {
                Token::Number(self.number(trimmed))
            }
            _ => {
                let Some(symbol) = SYMBOLS.iter().find(|symbol| trimmed.starts_with(**symbol))
                else {
                    let reason = format!(
                        "no token begins with {first:?}; texts need quotes, and names that are not plain words need backticks"
                    );
                    return Err(self.place(begin).error(reason));
                };
                self.at += symbol.len();
                Token::Symbol(symbol)
            }
        };
        Ok((begin, token))
    }

    fn run(&mut self, rest: &'a str, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = rest.find(|char| !belongs(char)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// All characters that directly follow a number belong to it, so that a wrong number is refused
    /// as a whole.
    fn number(&mut self, rest: &'a str) -> &'a str {
        let mut before = ' ';
        let end = rest.char_indices().find(|&(at, char)| {
            let sign = matches!(char, '-' | '+') && (at == 0 || matches!(before, 'e' | 'E'));
            before = char;
            !(sign || is_in_word(char))
        });
        let end = end.map_or(rest.len(), |(at, _)| at);
        self.at += end;
        &rest[..end]
    }

    fn name(&mut self) -> Result<Token<'a>, Error> {
        let begin = self.at;
        let mut name = String::new();
        let mut chars = self.text[begin + 1..].char_indices().peekable();
        while let Some((at, char)) = chars.next() {
            if char == '`' && chars.next_if(|next| next.1 == '`').is_none() {
                self.at = begin + 1 + at + 1;
                return Ok(Token::Name(name));
            }
            name.push(char);
        }
        Err(self
            .place(begin)
            .error("a name in backticks has no closing backtick"))
    }

    fn quoted(&mut self, quote: char) -> Result<Token<'a>, Error> {
        let begin = self.at;
        let mut text = String::new();
        let mut chars = self.text[begin + 1..].char_indices();
        while let Some((at, char)) = chars.next() {
            if char == quote {
                self.at = begin + 1 + at + 1;
                return Ok(Token::Text(text));
            }
            if char != '\\' {
                text.push(char);
                continue;
            }
            let wrong = |lexer: &Self| {
                let at = begin + 1 + at;
                let reason = format!(
                    "no escape: {}; there are \\n, \\t, \\r, \\b, \\f, \\/, \\\\, \\\", \\' and \\u with four hexadecimal digits",
                    lexer.shown(at)
                );
                lexer.place(at).error(reason)
            };
            match chars.next().map(|(_, char)| char) {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some('b') => text.push('\u{8}'),
                Some('f') => text.push('\u{c}'),
                Some(char @ ('/' | '\\' | '"' | '\'')) => text.push(char),
                Some('u') => {
                    let high = hexadecimal(&mut chars).ok_or_else(|| wrong(self))?;
                    let code = match high {
                        // The first surrogate of a code with more than four hexadecimal digits.
                        0xd800..=0xdbff => {
                            let follows = chars.next().map(|next| next.1) == Some('\\')
                                && chars.next().map(|next| next.1) == Some('u');
                            let low = hexadecimal(&mut chars)
                                .filter(|low| follows && (0xdc00..=0xdfff).contains(low));
                            let low = low.ok_or_else(|| wrong(self))?;
                            0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)
                        }
                        _ => high,
                    };
                    text.push(char::from_u32(code).ok_or_else(|| wrong(self))?);
                }
                _ => return Err(wrong(self)),
            }
        }
        Err(self
            .place(begin)
            .error("a text in quotes has no closing quote"))
    }
}

fn second_is_digit(text: &str) -> bool {
    text.chars()
        .nth(1)
        .is_some_and(|char| char.is_ascii_digit())
}

fn hexadecimal(chars: &mut std::str::CharIndices<'_>) -> Option<u32> {
    let mut code = 0;
    for _ in 0..4 {
        code = 16 * code + chars.next()?.1.to_digit(16)?;
    }
    Some(code)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The next token, and the offset of its first byte.
    token: Token<'a>,
    begin: usize,
    depth: usize,
    terms: usize,
    values: usize,
}

impl<'a> Parser<'a> {
    fn advance(&mut self) -> Result<Token<'a>, Error> {
        let (begin, token) = self.lexer.next()?;
        self.begin = begin;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn place(&self) -> Place {
        self.lexer.place(self.begin)
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = match &self.token {
            Token::End => "the end".to_owned(),
            _ => self.lexer.shown(self.begin),
        };
        let hint = match &self.token {
            Token::Symbol("=") => "; equality is ==",
            Token::Symbol("<>" | "!") => "; write `!=` before a value, and `not` before a filter",
            Token::Symbol("&&") => "; write and",
            Token::Symbol("||") => "; write or",
            Token::Word(word)
                if RESERVED.contains(&word.to_lowercase().as_str()) && !RESERVED.contains(word) =>
            {
                "; keywords are in lower case"
            }
            _ => "",
        };
        self.place()
            .error(format!("found {found}, expected {expected}{hint}"))
    }

    fn takes(&mut self, token: &Token<'_>) -> Result<bool, Error> {
        let is = self.token == *token;
        if is {
            self.advance()?;
        }
        Ok(is)
    }

    fn takes_word(&mut self, word: &str) -> Result<bool, Error> {
        self.takes(&Token::Word(word))
    }

    fn takes_symbol(&mut self, symbol: &str) -> Result<bool, Error> {
        self.takes(&Token::Symbol(symbol))
    }

    fn joined(
        &mut self,
        word: &str,
        part: fn(&mut Self) -> Result<Filter, Error>,
        join: fn(Vec<Filter>) -> Filter,
    ) -> Result<Filter, Error> {
        let place = self.place();
        let mut parts = vec![part(self)?];
        while self.takes_word(word)? {
            parts.push(part(self)?);
        }
        not_too_deep(join(parts), place)
    }

    fn any(&mut self) -> Result<Filter, Error> {
        self.joined("or", Self::all, Filter::any_of)
    }

    fn all(&mut self) -> Result<Filter, Error> {
        self.joined("and", Self::one, Filter::all_of)
    }

    fn one(&mut self) -> Result<Filter, Error> {
        let place = self.place();
        let is_deeper = matches!(self.token, Token::Word("not") | Token::Symbol("("));
        if !is_deeper {
            return self.test();
        }
        if self.depth == MOST_DEPTH {
            return Err(too_deep(place));
        }
        self.depth += 1;
        let filter = if self.takes_word("not")? {
            not_too_deep(!self.one()?, place)?
        } else {
            self.advance()?;
            let filter = self.any()?;
            if !self.takes_symbol(")")? {
                return Err(self.unexpected("and, or, or a closing parenthesis"));
            }
            filter
        };
        self.depth -= 1;
        Ok(filter)
    }

    fn column(&mut self, expected: &str) -> Result<FilterColumn, Error> {
        let place = self.place();
        let name = match &mut self.token {
            Token::Word(word) if !RESERVED.contains(word) => (*word).to_owned(),
            Token::Name(name) => std::mem::take(name),
            _ => return Err(self.unexpected(expected)),
        };
        self.advance()?;
        Ok(FilterColumn { name, place })
    }

    fn test(&mut self) -> Result<Filter, Error> {
        self.terms += 1;
        if self.terms > MOST_TERMS {
            return Err(self.place().error(format!(
                "more than {MOST_TERMS} comparisons; `in` takes many values at once"
            )));
        }
        for (word, matches) in [("true", true), ("false", false)] {
            if self.takes_word(word)? {
                return Ok(Filter::constant(matches));
            }
        }
        if self.takes_word("exists")? {
            let parenthesis = self.takes_symbol("(")?;
            let column = self.column("a column's name")?;
            if parenthesis && !self.takes_symbol(")")? {
                return Err(self.unexpected("a closing parenthesis"));
            }
            return Ok(column.exists());
        }
        let column = self.column("a comparison, which begins with a column's name")?;
        let asks = self.asks()?;
        Ok(column.asks(asks))
    }

    fn asks(&mut self) -> Result<Asks, Error> {
        const EXPECTED: &str = "==, !=, <, <=, >, >=, in, not in, between or contains";
        for comparison in Comparison::ALL {
            if self.takes_symbol(comparison.symbol())? {
                return self.compared(comparison);
            }
        }
        if self.takes_word("between")? {
            let low = self.value()?;
            if !self.takes_word("and")? {
                return Err(self.unexpected("and, behind the first of two values"));
            }
            return Ok(Asks::Between(low, self.value()?));
        }
        if self.takes_word("in")? {
            return Ok(Asks::In(self.values()?));
        }
        if self.takes_word("not")? {
            return match self.takes_word("in")? {
                true => Ok(Asks::NotIn(self.values()?)),
                false => Err(self.unexpected("in, behind not")),
            };
        }
        if self.takes_word("contains")? {
            return Ok(if self.takes_word("any")? {
                Asks::ContainsAny(self.values()?)
            } else if self.takes_word("all")? {
                Asks::ContainsAll(self.values()?)
            } else {
                Asks::Contains(self.value()?)
            });
        }
        Err(self.unexpected(EXPECTED))
    }

    fn compared(&mut self, comparison: Comparison) -> Result<Asks, Error> {
        let place = self.place();
        if self.takes_word("null")? {
            return match comparison {
                Comparison::Equal => Ok(Asks::Missing),
                Comparison::NotEqual => Ok(Asks::Exists),
                _ => Err(place.error(format!(
                    "{} null: only == and != take null",
                    comparison.symbol()
                ))),
            };
        }
        Ok(Asks::Compare(comparison, self.value()?))
    }

    fn values(&mut self) -> Result<Vec<Value>, Error> {
        let mut values = Vec::new();
        if !self.takes_symbol("[")? {
            return Err(self.unexpected("a list: [1, 2]"));
        }
        if self.takes_symbol("]")? {
            return Ok(values);
        }
        loop {
            values.push(self.value()?);
            if self.takes_symbol("]")? {
                return Ok(values);
            }
            if !self.takes_symbol(",")? {
                return Err(self.unexpected("a comma or a closing bracket"));
            }
        }
    }

    fn value(&mut self) -> Result<Value, Error> {
        self.values += 1;
        if self.values > MOST_VALUES {
            return Err(self
                .place()
                .error(format!("more than {MOST_VALUES} values")));
        }
        let value = match &mut self.token {
            Token::Word("true") => true.into(),
            Token::Word("false") => false.into(),
            Token::Word("inf") => f64::INFINITY.into(),
            Token::Text(text) => Value::String(std::mem::take(text)),
            Token::Number(number) => {
                let number = *number;
                self.number(number)?
            }
            Token::Word("timestamp") => {
                self.advance()?;
                if !self.takes_symbol("(")? {
                    return Err(self.unexpected("a parenthesis and microseconds since 1970 UTC"));
                }
                let micros = match self.token {
                    Token::Number(number) => number.parse::<i64>().ok(),
                    _ => None,
                };
                let micros = micros
                    .ok_or_else(|| self.unexpected("microseconds since 1970 UTC, an integer"))?;
                self.advance()?;
                if self.token != Token::Symbol(")") {
                    return Err(self.unexpected("a closing parenthesis"));
                }
                Value::Timestamp(micros)
            }
            Token::Symbol("-") => {
                self.advance()?;
                match self.token {
                    Token::Word("inf") => f64::NEG_INFINITY.into(),
                    _ => return Err(self.unexpected("a number")),
                }
            }
            Token::Symbol("[") => {
                return Err(self.unexpected(
                    "one value; only `in`, `not in`, `contains any` and `contains all` take a list",
                ));
            }
            Token::Word("null") => {
                return Err(self.unexpected("a value; only == and != take null"));
            }
            Token::Word(_) => return Err(self.unexpected("a value; write texts in quotes")),
            _ => return Err(self.unexpected("a value")),
        };
        self.advance()?;
        Ok(value)
    }

    fn number(&self, text: &str) -> Result<Value, Error> {
        let float = text.contains(['.', 'e', 'E']);
        if !float {
            return match text.parse::<i64>() {
                Ok(value) => Ok(value.into()),
                Err(_) if text.bytes().skip(1).all(|byte| byte.is_ascii_digit()) => {
                    let reason = format!("{text} does not fit 64 bits with a sign");
                    Err(self.place().error(reason))
                }
                Err(_) => Err(self.unexpected("a number")),
            };
        }
        match text.parse::<f64>() {
            // Too large a number becomes infinite. Files of attributes rely on this.
            Ok(value) => Ok(value.into()),
            Err(_) => Err(self.unexpected("a number")),
        }
    }
}

fn too_deep(place: Place) -> Error {
    place.error(format!(
        "parentheses, `not`, `and`, `or` are nested deeper than {MOST_DEPTH}"
    ))
}

fn not_too_deep(filter: Filter, place: Place) -> Result<Filter, Error> {
    match filter.is_too_deep() {
        true => Err(too_deep(place)),
        false => Ok(filter),
    }
}
