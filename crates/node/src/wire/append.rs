//! Messages as frames: each [`Message`], and those that the roles make of what they have, without one that borrows it first.

use super::change::{Changed, Token};
use super::kind::{
    ANSWERS, BEGIN, CHANGE, CHANGED, CODES, DESCRIBE, DESCRIPTION, DONE, END, GIVE_UP, LISTS, LOOK,
    LOW_CODES, MET, RANK, RANKED, REFINE, REFUSED, SEARCH,
};
use super::{Answers, Head, MOST_TEXT, Message, MissingNodes, Open, Ranked, nodes};

impl Message<'_> {
    /// Appends it as a frame. Rows, lists, codes and centroids must be such that the body has at most [`MOST_BODY`](super::MOST_BODY) bytes.
    pub fn append(&self, head: Head, out: &mut Vec<u8>) {
        let open = Open::new(out);
        let kind = match *self {
            Message::Describe { for_changes } => {
                out.extend(for_changes.then_some(1u8));
                DESCRIBE
            }
            Message::Description {
                collection,
                centroids,
            } => {
                collection.append(out);
                out.extend(centroids);
                DESCRIPTION
            }
            Message::LowCodes { from, count, kept } => {
                put(out, &[from, count, kept]);
                LOW_CODES
            }
            Message::Codes { from, count, codes } => {
                put(out, &[from, count]);
                out.extend(codes);
                CODES
            }
            Message::Begin {
                list,
                full,
                beam,
                missing,
                query,
                nodes,
            } => {
                put_begin(out, [list, full, beam], missing, query);
                nodes.append(out);
                BEGIN
            }
            Message::Look {
                step,
                missing,
                offered,
            } => {
                put(out, &[step, missing.nodes.0.len() as u32]);
                put_missing(out, missing);
                offered.append(out);
                LOOK
            }
            Message::Refine { step, nodes } => {
                put(out, &[step]);
                nodes.append(out);
                REFINE
            }
            Message::End => END,
            Message::Lists { step, lists } => {
                put(out, &[step]);
                out.extend(lists);
                LISTS
            }
            Message::Met {
                step,
                lists,
                estimates,
            } => {
                put(out, &[step, lists.len() as u32]);
                out.extend(lists);
                estimates.append(out);
                MET
            }
            Message::Done {
                step,
                computations,
                low,
                nodes,
            } => {
                put(out, &[step, computations, low]);
                out.extend(nodes.0);
                DONE
            }
            Message::Rank { k, row, nodes } => {
                put(out, &[k, row.len() as u32]);
                out.extend(row);
                out.extend(nodes.0);
                RANK
            }
            Message::Ranked {
                reads,
                bytes,
                computations,
                refused,
                answers,
            } => {
                for number in [reads, bytes, computations] {
                    out.extend(number.to_le_bytes());
                }
                put(out, &[refused]);
                put_answers(out, answers);
                RANKED
            }
            Message::Search { k, list, beam, row } => {
                put(out, &[k, list, beam]);
                out.extend(row);
                SEARCH
            }
            Message::Answers { counters, answers } => {
                counters.append(out);
                put_answers(out, answers);
                ANSWERS
            }
            Message::Change {
                token,
                wanted,
                upserts,
                deletes,
                rows,
            } => {
                put_token(out, token, wanted.newest);
                let counts = [wanted.numbers.len(), upserts.len(), deletes.len()];
                put(out, &counts.map(|count| count as u32));
                for part in [wanted.numbers.0, upserts.0, deletes.0, rows] {
                    out.extend(part);
                }
                CHANGE
            }
            Message::GiveUp { token, wanted } => {
                put_token(out, token, wanted.newest);
                put(out, &[wanted.numbers.len() as u32]);
                out.extend(wanted.numbers.0);
                GIVE_UP
            }
            Message::Changed(Changed { upserted, deleted }) => {
                put(out, &[upserted, deleted]);
                CHANGED
            }
            Message::Refused { reason, text } => {
                put(out, &[reason as u32]);
                let mut end = text.len().min(MOST_TEXT);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                out.extend(&text.as_bytes()[..end]);
                REFUSED
            }
        };
        open.close(kind, head, out);
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

fn put_token(out: &mut Vec<u8>, token: Token, newest: u64) {
    put_long(out, &[token.run, token.client, token.number, newest]);
}

/// What stands before the nodes at which a walk begins.
fn put_begin(out: &mut Vec<u8>, sizes: [u32; 3], missing: MissingNodes<'_>, query: &[u8]) {
    put(out, &sizes);
    put(out, &[missing.nodes.0.len() as u32, query.len() as u32]);
    put_missing(out, missing);
    out.extend(query);
}

/// Nodes whose low codes are missing, of which it was said how many bytes they take.
fn put_missing(out: &mut Vec<u8>, missing: MissingNodes<'_>) {
    if !missing.nodes.0.is_empty() {
        put(out, &[missing.most, missing.bound.to_bits()]);
        out.extend(missing.nodes.0);
    }
}

fn put_answers(out: &mut Vec<u8>, answers: Answers<'_>) {
    put(out, &[answers.len() as u32]);
    out.extend(answers.ids);
    out.extend(answers.distances);
}

/// Appends the frame of a step's lists, which `pack` appends; where it says that there are none, nothing is appended. Gives whether there were.
pub(crate) fn append_lists(
    head: Head,
    step: u32,
    out: &mut Vec<u8>,
    pack: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    let before = out.len();
    let open = Open::new(out);
    put(out, &[step]);
    if !pack(out) {
        out.truncate(before);
        return false;
    }
    open.close(LISTS, head, out);
    true
}

/// The same of a step that asked for low codes: `estimates` are those of what was asked for; sorts them.
pub(crate) fn append_met(
    head: Head,
    step: u32,
    estimates: &mut Vec<(u32, f32)>,
    out: &mut Vec<u8>,
    pack: impl FnOnce(&mut Vec<u8>) -> bool,
) -> bool {
    let before = out.len();
    let open = Open::new(out);
    put(out, &[step, 0]);
    let first = out.len();
    if !pack(out) {
        out.truncate(before);
        return false;
    }
    let lists = (out.len() - first) as u32;
    out[first - 4..first].copy_from_slice(&lists.to_le_bytes());
    nodes::append_scored(estimates, out);
    open.close(MET, head, out);
    true
}

/// Appends the end of a walk, with its distances by high and by low codes; sorts the nodes.
pub(crate) fn append_done(
    head: Head,
    step: u32,
    computations: [u64; 2],
    nodes: &mut Vec<u32>,
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    let [high, low] = computations.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    put(out, &[step, high, low]);
    nodes::append(nodes, out);
    open.close(DONE, head, out);
}

/// Appends the beginning of a walk; sorts the nodes. `missing` are those of which no low code is here, and what [`MissingNodes`] says of them.
pub(crate) fn append_begin(
    head: Head,
    sizes: [u32; 3],
    (missing, most, bound): (&mut Vec<u32>, u32, f32),
    query: &[u8],
    nodes: &mut Vec<(u32, f32)>,
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put(out, &sizes);
    put(out, &[0, query.len() as u32]);
    let first = out.len();
    if !missing.is_empty() {
        put(out, &[most, bound.to_bits()]);
        nodes::append(missing, out);
        let bytes = (out.len() - first - 8) as u32;
        out[first - 8..first - 4].copy_from_slice(&bytes.to_le_bytes());
    }
    out.extend(query);
    nodes::append_scored(nodes, out);
    open.close(BEGIN, head, out);
}

/// Appends a step of a walk; sorts the nodes.
pub(crate) fn append_refine(head: Head, step: u32, nodes: &mut Vec<(u32, f32)>, out: &mut Vec<u8>) {
    let open = Open::new(out);
    put(out, &[step]);
    nodes::append_scored(nodes, out);
    open.close(REFINE, head, out);
}

/// Appends a step of a walk that has met nodes of which no low code is here; sorts the nodes.
pub(crate) fn append_look(
    head: Head,
    step: u32,
    (missing, most, bound): (&mut Vec<u32>, u32, f32),
    offered: &mut Vec<(u32, f32)>,
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put(out, &[step, 0, most, bound.to_bits()]);
    let first = out.len();
    nodes::append(missing, out);
    let bytes = (out.len() - first) as u32;
    out[first - 12..first - 8].copy_from_slice(&bytes.to_le_bytes());
    nodes::append_scored(offered, out);
    open.close(LOOK, head, out);
}

/// Appends what storage is to rank; sorts the nodes.
pub(crate) fn append_rank(head: Head, k: u32, row: &[u8], nodes: &mut Vec<u32>, out: &mut Vec<u8>) {
    let open = Open::new(out);
    put(out, &[k, row.len() as u32]);
    out.extend(row);
    nodes::append(nodes, out);
    open.close(RANK, head, out);
}

/// Appends codes of `count` nodes, which `fill` appends; where it cannot, nothing is appended.
pub(crate) fn append_codes<E>(
    head: Head,
    [from, count]: [u32; 2],
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let before = out.len();
    let open = Open::new(out);
    put(out, &[from, count]);
    if let Err(error) = fill(out) {
        out.truncate(before);
        return Err(error);
    }
    open.close(CODES, head, out);
    Ok(())
}

impl Ranked {
    /// Appends it as storage's answer.
    pub(crate) fn append(&self, head: Head, out: &mut Vec<u8>) {
        let open = Open::new(out);
        for number in [self.reads, self.bytes, self.computations] {
            out.extend(number.to_le_bytes());
        }
        let count = self.ids.len().min(self.distances.len());
        put(out, &[self.refused, count as u32]);
        self.ids[..count]
            .iter()
            .for_each(|id| out.extend(id.to_le_bytes()));
        let distances = self.distances[..count].iter();
        distances.for_each(|distance| out.extend(distance.to_le_bytes()));
        open.close(RANKED, head, out);
    }
}

/// Appends a change: its token, what its client waits for with the newest that this is about, ids and rows.
pub(crate) fn append_change(
    head: Head,
    token: Token,
    (newest, wanted): (u64, &[u64]),
    (upserts, rows, deletes): (&[u64], &[u8], &[u64]),
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put_token(out, token, newest);
    let counts = [wanted.len(), upserts.len(), deletes.len()];
    put(out, &counts.map(|count| count as u32));
    for numbers in [wanted, upserts, deletes] {
        put_long(out, numbers);
    }
    out.extend(rows);
    open.close(CHANGE, head, out);
}

/// Appends that a change is not wanted any more.
pub(crate) fn append_give_up(
    head: Head,
    token: Token,
    (newest, wanted): (u64, &[u64]),
    out: &mut Vec<u8>,
) {
    let open = Open::new(out);
    put_token(out, token, newest);
    put(out, &[wanted.len() as u32]);
    put_long(out, wanted);
    open.close(GIVE_UP, head, out);
}

/// Appends a change again, or that it is given up, as it came.
pub(crate) fn append_change_body(head: Head, gives_up: bool, body: &[u8], out: &mut Vec<u8>) {
    let open = Open::new(out);
    out.extend(body);
    open.close(if gives_up { GIVE_UP } else { CHANGE }, head, out);
}
