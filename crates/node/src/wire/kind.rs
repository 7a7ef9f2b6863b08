//! The kinds of messages. The table in [`wire`](super) describes each kind.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Describe = 1,
    Description = 2,
    LowCodes = 3,
    Codes = 4,
    Begin = 5,
    Refine = 6,
    End = 7,
    Lists = 8,
    Done = 9,
    Rank = 10,
    Ranked = 11,
    Search = 12,
    Answers = 13,
    Refused = 14,
    Met = 15,
    Change = 16,
    Changed = 17,
    GiveUp = 18,
    Look = 19,
}

impl Kind {
    const ALL: [Kind; 19] = [
        Kind::Describe,
        Kind::Description,
        Kind::LowCodes,
        Kind::Codes,
        Kind::Begin,
        Kind::Refine,
        Kind::End,
        Kind::Lists,
        Kind::Done,
        Kind::Rank,
        Kind::Ranked,
        Kind::Search,
        Kind::Answers,
        Kind::Refused,
        Kind::Met,
        Kind::Change,
        Kind::Changed,
        Kind::GiveUp,
        Kind::Look,
    ];

    pub(super) fn of(number: u8) -> Option<Kind> {
        let place = usize::from(number).checked_sub(1)?;
        Kind::ALL.get(place).copied()
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Describe => "describe",
            Kind::Description => "description",
            Kind::LowCodes => "low codes",
            Kind::Codes => "codes",
            Kind::Begin => "begin",
            Kind::Refine => "refine",
            Kind::End => "end",
            Kind::Lists => "lists",
            Kind::Done => "done",
            Kind::Rank => "rank",
            Kind::Ranked => "ranked",
            Kind::Search => "search",
            Kind::Answers => "answers",
            Kind::Refused => "refused",
            Kind::Met => "met",
            Kind::Change => "change",
            Kind::Changed => "changed",
            Kind::GiveUp => "give up",
            Kind::Look => "look",
        }
    }
}

impl From<Kind> for u8 {
    fn from(kind: Kind) -> u8 {
        kind as u8
    }
}

const _: () = {
    let mut at = 0;
    while at < Kind::ALL.len() {
        assert!(Kind::ALL[at] as usize == at + 1);
        at += 1;
    }
};
