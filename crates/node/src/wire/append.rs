//! Encodes messages as frames, from a [`Message`] or directly from a role's own data.

use std::convert::Infallible;

use super::change::{Changed, Ids, Token};
use super::kind::Kind;
use super::{Answers, Head, MOST_TEXT, Message, Nodes, Open, Ranked, Scored, nodes};

impl Message<'_> {
    /// Appends the message as a frame, at most [`MOST_BODY`](super::MOST_BODY) bytes.
    pub fn append(&self, head: Head, out: &mut Vec<u8>) {
        let open = Open::new(out);
        let kind = match *self {
            Message::Describe { for_changes } => {
                out.extend(for_changes.then_some(1u8));
                Kind::Describe
            }
            Message::Description {
                collection,
                centroids,
            } => {
                collection.append(out);
                out.extend(centroids);
                Kind::Description
            }
            Message::LowCodes { from, count, kept } => {
                put(out, &[from, count, kept]);
                Kind::LowCodes
            }
            Message::Codes { from, count, codes } => {
                let Ok(()) = put_codes(out, [from, count], |out| {
                    out.extend(codes);
                    Ok::<_, Infallible>(())
                });
                Kind::Codes
            }
            Message::Begin {
                list,
                full,
                beam,
                missing,
                query,
                nodes,
            } => {
                let asked = (missing.nodes, missing.most, missing.bound);
                put_begin(out, [list, full, beam], asked, query, nodes);
                Kind::Begin
            }
            Message::Look {
                step,
                missing,
                offered,
            } => {
                let asked = (missing.nodes, missing.most, missing.bound);
                put_look(out, step, asked, offered);
                Kind::Look
            }
            Message::Refine { step, nodes } => {
                put_refine(out, step, nodes);
                Kind::Refine
            }
            Message::End => Kind::End,
            Message::Lists { step, lists } => {
                put_lists(out, step, |out| append_all(out, lists));
                Kind::Lists
            }
            Message::Met {
                step,
                lists,
                estimates,
            } => {
                put_met(out, step, estimates, |out| append_all(out, lists));
                Kind::Met
            }
            Message::Done {
                step,
                computations,
                low,
                nodes,
            } => {
                put_done(out, [step, computations, low], nodes);
                Kind::Done
            }
            Message::Rank { k, row, nodes } => {
                put_rank(out, k, row, nodes);
                Kind::Rank
            }
            Message::Ranked {
                reads,
                bytes,
                computations,
                refused,
                answers,
            } => {
                put_ranked(out, [reads, bytes, computations], refused, answers);
                Kind::Ranked
            }
            Message::Search { k, list, beam, row } => {
                put(out, &[k, list, beam]);
                out.extend(row);
                Kind::Search
            }
            Message::Answers { counters, answers } => {
                counters.append(out);
                answers.put(out);
                Kind::Answers
            }
            Message::Change {
                token,
                wanted,
                upserts,
                deletes,
                rows,
            } => {
                let waits = (wanted.newest, wanted.numbers);
                put_change(out, token, waits, (upserts, rows, deletes));
                Kind::Change
            }
            Message::GiveUp { token, wanted } => {
                put_give_up(out, token, (wanted.newest, wanted.numbers));
                Kind::GiveUp
            }
            Message::Changed(Changed { upserted, deleted }) => {
                put(out, &[upserted, deleted]);
                Kind::Changed
            }
            Message::Refused { reason, text } => {
                put(out, &[reason as u32]);
                let mut end = text.len().min(MOST_TEXT);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                out.extend(&text.as_bytes()[..end]);
                Kind::Refused
            }
        };
        open.close(kind, head, out);
    }
}

/// A part of a body, either as received in a frame or as a role stores it.
trait Part {
    fn put(self, out: &mut Vec<u8>);
}

impl Part for Nodes<'_> {
    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.0);
    }
}

impl Part for &mut Vec<u32> {
    fn put(self, out: &mut Vec<u8>) {
        nodes::append(self, out);
    }
}

impl Part for Scored<'_> {
    fn put(self, out: &mut Vec<u8>) {
        self.append(out);
    }
}

impl Part for &mut Vec<(u32, f32)> {
    fn put(self, out: &mut Vec<u8>) {
        nodes::append_scored(self, out);
    }
}

impl Part for Answers<'_> {
    fn put(self, out: &mut Vec<u8>) {
        put(out, &[self.len() as u32]);
        out.extend(self.ids);
        out.extend(self.distances);
    }
}

impl Part for &Ranked {
    fn put(self, out: &mut Vec<u8>) {
        let count = self.ids.len().min(self.distances.len());
        put(out, &[count as u32]);
        put_long(out, &self.ids[..count]);
        let distances = self.distances[..count].iter();
        distances.for_each(|distance| out.extend(distance.to_le_bytes()));
    }
}

/// Numbers of eight bytes. Their count is written separately.
trait Numbers {
    fn count(&self) -> u32;
    fn put(&self, out: &mut Vec<u8>);
}

impl Numbers for Ids<'_> {
    fn count(&self) -> u32 {
        self.len() as u32
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.0);
    }
}

impl Numbers for &[u64] {
    fn count(&self) -> u32 {
        self.len() as u32
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_long(out, self);
    }
}

fn put(out: &mut Vec<u8>, numbers: &[u32]) {
    for number in numbers {
        out.extend(number.to_le_bytes());
    }
}

fn put_long(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        out.extend(number.to_le_bytes());
    }
}

fn append_all(out: &mut Vec<u8>, bytes: &[u8]) -> bool {
    out.extend(bytes);
    true
}

fn put_at(out: &mut [u8], at: usize, number: usize) {
    out[at..at + 4].copy_from_slice(&(number as u32).to_le_bytes());
}

fn put_token(out: &mut Vec<u8>, token: Token, newest: u64) {
    put_long(out, &[token.run, token.client, token.number, newest]);
}

/// Appends missing nodes, if there are any, and writes the length in bytes at `at`.
fn put_missing(out: &mut Vec<u8>, at: usize, (missing, most, bound): (impl Part, u32, f32)) {
    let before = out.len();
    put(out, &[most, bound.to_bits()]);
    let first = out.len();
    missing.put(out);
    let bytes = out.len() - first;
    if bytes == 0 {
        out.truncate(before);
    }
    put_at(out, at, bytes);
}

fn put_begin(
    out: &mut Vec<u8>,
    sizes: [u32; 3],
    missing: (impl Part, u32, f32),
    query: &[u8],
    nodes: impl Part,
) {
    put(out, &sizes);
    let at = out.len();
    put(out, &[0, query.len() as u32]);
    put_missing(out, at, missing);
    out.extend(query);
    nodes.put(out);
}

fn put_look(out: &mut Vec<u8>, step: u32, missing: (impl Part, u32, f32), offered: impl Part) {
    put(out, &[step]);
    let at = out.len();
    put(out, &[0]);
    put_missing(out, at, missing);
    offered.put(out);
}

fn put_refine(out: &mut Vec<u8>, step: u32, nodes: impl Part) {
    put(out, &[step]);
    nodes.put(out);
}

fn put_lists(out: &mut Vec<u8>, step: u32, pack: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
    put(out, &[step]);
    pack(out)
}

fn put_met(
    out: &mut Vec<u8>,
    step: u32,
    estimates: impl Part,
    pack: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    put(out, &[step, 0]);
    let first = out.len();
    let any = pack(out);
    let lists = out.len() - first;
    put_at(out, first - 4, lists);
    estimates.put(out);
    any
}

fn put_done(out: &mut Vec<u8>, counts: [u32; 3], nodes: impl Part) {
    put(out, &counts);
    nodes.put(out);
}

fn put_rank(out: &mut Vec<u8>, k: u32, row: &[u8], nodes: impl Part) {
    put(out, &[k, row.len() as u32]);
    out.extend(row);
    nodes.put(out);
}

fn put_ranked(out: &mut Vec<u8>, took: [u64; 3], refused: u32, answers: impl Part) {
    put_long(out, &took);
    put(out, &[refused]);
    answers.put(out);
}

fn put_codes<E>(
    out: &mut Vec<u8>,
    nodes: [u32; 2],
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put(out, &nodes);
    fill(out)
}

fn put_change<N: Numbers>(
    out: &mut Vec<u8>,
    token: Token,
    (newest, wanted): (u64, N),
    (upserts, rows, deletes): (N, &[u8], N),
) {
    put_token(out, token, newest);
    put(out, &[wanted.count(), upserts.count(), deletes.count()]);
    for numbers in [wanted, upserts, deletes] {
        numbers.put(out);
    }
    out.extend(rows);
}

fn put_give_up(out: &mut Vec<u8>, token: Token, (newest, wanted): (u64, impl Numbers)) {
    put_token(out, token, newest);
    put(out, &[wanted.count()]);
    wanted.put(out);
}

/// Appends the lists that `pack` appends. If `pack` returns false, appends no frame.
pub(crate) fn append_lists(
    head: Head,
    step: u32,
    out: &mut Vec<u8>,
    pack: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    let before = out.len();
    let open = Open::new(out);
    let any = put_lists(out, step, pack);
    match any {
        true => open.close(Kind::Lists, head, out),
        false => out.truncate(before),
    }
    any
}

pub(crate) fn append_met(
    head: Head,
    step: u32,
    estimates: &mut Vec<(u32, f32)>,
    out: &mut Vec<u8>,
    pack: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    let before = out.len();
    let open = Open::new(out);
    let any = put_met(out, step, estimates, pack);
    match any {
        true => open.close(Kind::Met, head, out),
        false => out.truncate(before),
    }
    any
}

pub(crate) fn append_done(
    head: Head,
    step: u32,
    computations: [u64; 2],
    nodes: &mut Vec<u32>,
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    let [high, low] = computations.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    put_done(out, [step, high, low], nodes);
    open.close(Kind::Done, head, out);
}

pub(crate) fn append_begin(
    head: Head,
    sizes: [u32; 3],
    missing: (&mut Vec<u32>, u32, f32),
    query: &[u8],
    nodes: &mut Vec<(u32, f32)>,
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put_begin(out, sizes, missing, query, nodes);
    open.close(Kind::Begin, head, out);
}

pub(crate) fn append_refine(head: Head, step: u32, nodes: &mut Vec<(u32, f32)>, out: &mut Vec<u8>) {
    let open = Open::new(out);
    put_refine(out, step, nodes);
    open.close(Kind::Refine, head, out);
}

pub(crate) fn append_look(
    head: Head,
    step: u32,
    missing: (&mut Vec<u32>, u32, f32),
    offered: &mut Vec<(u32, f32)>,
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put_look(out, step, missing, offered);
    open.close(Kind::Look, head, out);
}

pub(crate) fn append_rank(head: Head, k: u32, row: &[u8], nodes: &mut Vec<u32>, out: &mut Vec<u8>) {
    let open = Open::new(out);
    put_rank(out, k, row, nodes);
    open.close(Kind::Rank, head, out);
}

/// If `fill` fails, the call appends nothing.
pub(crate) fn append_codes<E>(
    head: Head,
    nodes: [u32; 2],
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let before = out.len();
    let open = Open::new(out);
    let filled = put_codes(out, nodes, fill);
    match filled {
        Ok(()) => open.close(Kind::Codes, head, out),
        Err(_) => out.truncate(before),
    }
    filled
}

impl Ranked {
    pub(crate) fn append(&self, head: Head, out: &mut Vec<u8>) {
        let open = Open::new(out);
        let took = [self.reads, self.bytes, self.computations];
        put_ranked(out, took, self.refused, self);
        open.close(Kind::Ranked, head, out);
    }
}

/// `wanted` has the newest change, and the changes that the client waits for.
pub(crate) fn append_change(
    head: Head,
    token: Token,
    wanted: (u64, &[u64]),
    change: (&[u64], &[u8], &[u64]),
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put_change(out, token, wanted, change);
    open.close(Kind::Change, head, out);
}

pub(crate) fn append_give_up(head: Head, token: Token, wanted: (u64, &[u64]), out: &mut Vec<u8>) {
    let open = Open::new(out);
    put_give_up(out, token, wanted);
    open.close(Kind::GiveUp, head, out);
}

pub(crate) fn append_change_body(head: Head, gives_up: bool, body: &[u8], out: &mut Vec<u8>) {
    let open = Open::new(out);
    out.extend(body);
    let kind = if gives_up { Kind::GiveUp } else { Kind::Change };
    open.close(kind, head, out);
}
