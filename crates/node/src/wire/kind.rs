//! The kinds of messages, as a frame's header has them. The table in [`wire`](super) says what each is.

pub(super) const DESCRIBE: u8 = 1;
pub(super) const DESCRIPTION: u8 = 2;
pub(super) const LOW_CODES: u8 = 3;
pub(super) const CODES: u8 = 4;
pub(super) const BEGIN: u8 = 5;
pub(super) const REFINE: u8 = 6;
pub(super) const END: u8 = 7;
pub(super) const LISTS: u8 = 8;
pub(super) const DONE: u8 = 9;
pub(super) const RANK: u8 = 10;
pub(super) const RANKED: u8 = 11;
pub(super) const SEARCH: u8 = 12;
pub(super) const ANSWERS: u8 = 13;
pub(super) const REFUSED: u8 = 14;
pub(super) const MET: u8 = 15;
pub(super) const CHANGE: u8 = 16;
pub(super) const CHANGED: u8 = 17;
pub(super) const GIVE_UP: u8 = 18;
pub(super) const LOOK: u8 = 19;

/// What a kind of message is called; `None` of a number that is none.
pub(super) fn name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        DESCRIBE => "describe",
        DESCRIPTION => "description",
        LOW_CODES => "low codes",
        CODES => "codes",
        BEGIN => "begin",
        REFINE => "refine",
        END => "end",
        LISTS => "lists",
        DONE => "done",
        RANK => "rank",
        RANKED => "ranked",
        SEARCH => "search",
        ANSWERS => "answers",
        REFUSED => "refused",
        MET => "met",
        CHANGE => "change",
        CHANGED => "changed",
        GIVE_UP => "give up",
        LOOK => "look",
        _ => return None,
    })
}
