use proptest::prelude::*;

use super::*;

fn samples<'a>(
    row: &'a [u8],
    text: &'a str,
    set: &'a [u8],
    answers: Answers<'a>,
) -> Vec<Message<'a>> {
    let collection = Collection {
        state: 77,
        nodes: 1 << 20,
        dim: 128,
        row_bytes: 128,
        low_bytes: 16,
        high_bytes: 32,
        element: 1,
        metric: 2,
        changes: true,
        vectors: 1 << 33,
    };
    let counters = Counters {
        low: 1,
        high: 2,
        full: 3,
        steps: 4,
        restarts: 5,
        wire: 6,
        storage_wire: 7,
        reads: 8,
        read_bytes: 9,
        list: 10,
        beam: 11,
    };
    let token = Token {
        run: 3,
        client: u64::MAX,
        number: 2,
    };
    let wanted = Wanted {
        newest: 5,
        numbers: Ids(&[2, 0, 0, 0, 0, 0, 0, 0]),
    };
    let nodes = Nodes(set);
    let scored = Scored {
        nodes,
        estimates: &[7; 12],
    };
    let missing = MissingNodes {
        most: 6,
        bound: 1.5,
        nodes,
    };
    vec![
        Message::Describe { for_changes: false },
        Message::Describe { for_changes: true },
        Message::Description {
            collection,
            centroids: row,
        },
        Message::LowCodes {
            from: 5,
            count: 7,
            kept: 3,
        },
        Message::Codes {
            from: 5,
            count: 2,
            codes: row,
        },
        Message::Begin {
            list: 40,
            full: 20,
            beam: 8,
            query: row,
            missing: MissingNodes::NONE,
            nodes: scored,
        },
        Message::Begin {
            list: 40,
            full: 20,
            beam: 8,
            query: row,
            missing,
            nodes: scored,
        },
        Message::Met {
            step: 3,
            lists: row,
            estimates: scored,
        },
        Message::Look {
            step: 3,
            missing,
            offered: scored,
        },
        Message::Refine {
            step: 3,
            nodes: scored,
        },
        Message::End,
        Message::Lists {
            step: 3,
            lists: row,
        },
        Message::Done {
            step: 9,
            computations: 465,
            low: 6,
            nodes,
        },
        Message::Rank { k: 10, row, nodes },
        Message::Ranked {
            reads: 9,
            bytes: 4096,
            computations: 20,
            refused: 3,
            answers,
        },
        Message::Search {
            k: 10,
            list: 0,
            beam: 0,
            row,
        },
        Message::Answers { counters, answers },
        Message::GiveUp { token, wanted },
        Message::Change {
            token,
            wanted,
            upserts: Ids::default(),
            deletes: Ids::default(),
            rows: row,
        },
        Message::Changed(Changed {
            upserted: 7,
            deleted: 9,
        }),
        Message::Refused {
            reason: Reason::OtherState,
            text,
        },
    ]
}

fn answers(bytes: &[u8]) -> Answers<'_> {
    let frame = Frame::decode(bytes).unwrap().unwrap();
    match Message::decode(&frame).unwrap() {
        Message::Ranked { answers, .. } => answers,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_come_back_as_they_were_and_any_other_bit_is_found() {
    let ranked = Ranked {
        ids: vec![7, u64::MAX - 1],
        distances: vec![0.5, f32::MAX],
        ..Ranked::default()
    };
    let mut bytes = Vec::new();
    ranked.append(Head::default(), &mut bytes);
    let answers = answers(&bytes);
    assert_eq!(answers.ids().collect::<Vec<_>>(), ranked.ids);
    assert_eq!(answers.distances().collect::<Vec<_>>(), ranked.distances);
    let mut set = Vec::new();
    nodes::append(&mut vec![9, 3, 3, 1 << 19], &mut set);
    let head = Head {
        id: u64::MAX - 3,
        state: 77,
        left: 1000,
    };
    for message in samples(b"a row", "no: ü", &set, answers) {
        let mut bytes = Vec::new();
        message.append(head, &mut bytes);
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        assert_eq!((frame.head, frame.bytes()), (head, bytes.len()));
        assert_eq!(Message::decode(&frame), Ok(message));
        for cut in 0..bytes.len() {
            assert_eq!(
                Frame::decode(&bytes[..cut]),
                Ok(None),
                "{message:?} cut at {cut}"
            );
        }
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            // A flipped bit of the length may make the frame look incomplete.
            let found = Frame::decode(&wrong);
            assert!(
                found.is_err() || (found == Ok(None) && bit < 32),
                "{message:?}, bit {bit}"
            );
        }
    }
}

#[test]
fn texts_are_cut_between_characters() {
    let (text, mut bytes) = ("ü".repeat(MOST_TEXT), Vec::new());
    let text = &format!("x{text}");
    Message::Refused {
        reason: Reason::Failed,
        text,
    }
    .append(Head::default(), &mut bytes);
    let frame = Frame::decode(&bytes).unwrap().unwrap();
    match Message::decode(&frame).unwrap() {
        Message::Refused { text: found, .. } => {
            assert!(text.starts_with(found) && found.len() >= MOST_TEXT - 1)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_of_other_versions_or_without_end_are_refused_before_they_are_waited_for() {
    let mut bytes = Vec::new();
    Message::Describe { for_changes: false }.append(Head::default(), &mut bytes);
    for (at, value, field) in [(3, 2, "length"), (4, 1, "version"), (6, 1, "flags")] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        match Frame::decode(&wrong) {
            Err(WireError::Header { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_body_that_is_longer_than_what_is_sent_here_is_not_waited_for() {
    let mut incoming = Incoming::new(100);
    let header = [101, 0, 0, 0];
    let fill = |room: &mut [u8]| {
        room[..4].copy_from_slice(&header);
        Ok::<_, ()>(4)
    };
    incoming.fill(64, fill).unwrap();
    assert!(matches!(
        incoming.frame(),
        Err(WireError::Header { value: 101, .. })
    ));
}

#[test]
fn what_is_left_is_never_said_to_be_no_end() {
    assert_eq!(Head::until(1, 2, Duration::ZERO).left, 1);
    assert_eq!(
        Head::until(1, 2, Duration::from_secs(1 << 20)).left,
        u32::MAX
    );
    let (now, patience) = (Duration::from_secs(5), Duration::from_secs(3));
    assert_eq!(Head::default().deadline(now, patience), now + patience);
    let head = Head::until(1, 2, Duration::from_micros(9));
    assert_eq!(head.deadline(now, patience), now + Duration::from_micros(9));
    assert_eq!(
        Head::until(1, 2, Duration::MAX).deadline(now, patience),
        now + patience
    );
}

proptest! {
    #[test]
    fn sets_of_nodes_come_back(mut nodes in prop::collection::vec(any::<u32>(), 0..200), near in prop::collection::vec(0u32..500, 0..200)) {
        for set in [&mut nodes, &mut near.clone()] {
            set.retain(|&node| node < u32::MAX);
            let (mut bytes, mut found) = (Vec::new(), Vec::new());
            nodes::append(set, &mut bytes);
            Nodes(&bytes).read(u32::MAX, &mut found).unwrap();
            prop_assert_eq!(&*set, &found);
            if let Some(&last) = set.last() {
                prop_assert!(Nodes(&bytes).read(last, &mut found).is_err());
            }
        }
    }

    #[test]
    fn no_bytes_are_a_panic(kind in 0u8..20, body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = Vec::new();
        let open = Open::new(&mut bytes);
        bytes.extend(&body);
        open.close(kind, Head::default(), &mut bytes);
        let frame = Frame::decode(&bytes).unwrap().unwrap();
        if let Ok(message) = Message::decode(&frame) {
            // The unused bytes of a collection may differ, so the decoded messages are compared.
            let mut again = Vec::new();
            message.append(Head::default(), &mut again);
            let frame = Frame::decode(&again).unwrap().unwrap();
            prop_assert_eq!(Message::decode(&frame), Ok(message));
        }
        let mut nodes = Vec::new();
        if Nodes(&body).read(1 << 20, &mut nodes).is_ok() {
            prop_assert!(nodes.is_sorted() && nodes.iter().all(|&node| node < 1 << 20));
        }
        let _ = Frame::decode(&body);
    }

    #[test]
    fn frames_are_found_in_pieces_of_any_size(sizes in prop::collection::vec(1usize..90, 1..60)) {
        let mut bytes = Vec::new();
        for id in 0..20u64 {
            let row = vec![id as u8; id as usize + 1];
            let message = Message::Search { k: 1, list: 2, beam: 0, row: &row };
            message.append(Head { id, ..Head::default() }, &mut bytes);
        }
        let (mut incoming, mut at, mut next) = (Incoming::new(MOST_BODY), 0, 0);
        for size in sizes.into_iter().cycle() {
            let piece = &bytes[at..bytes.len().min(at + size)];
            at += incoming.fill::<()>(size, |room| {
                room[..piece.len()].copy_from_slice(piece);
                Ok(piece.len())
            }).unwrap();
            while let Some(frame) = incoming.frame().unwrap() {
                prop_assert_eq!(frame.head.id, next);
                next += 1;
            }
            if at == bytes.len() {
                break;
            }
        }
        prop_assert_eq!(next, 20);
        prop_assert!(!incoming.is_amid());
    }
}

#[test]
fn scored_nodes_come_back_with_their_estimates_and_as_many_as_these() {
    let mut nodes = vec![(900, 2.5), (3, f32::INFINITY), (900, 2.5), (4, -0.0)];
    let mut bytes = Vec::new();
    append_refine(Head::default(), 1, &mut nodes, &mut bytes);
    let frame = Frame::decode(&bytes).unwrap().unwrap();
    let Ok(Message::Refine { nodes: scored, .. }) = Message::decode(&frame) else {
        panic!("{frame:?}");
    };
    let mut read = vec![(7, 7.0)];
    scored.read(901, &mut read).unwrap();
    assert_eq!(read, [(3, f32::INFINITY), (4, -0.0), (900, 2.5)]);
    assert!(
        scored.read(900, &mut read).is_err(),
        "a node beyond the end was read"
    );
    for estimates in [&[0; 8][..], &[0; 16]] {
        let other = Scored {
            estimates,
            ..scored
        };
        let error = other.read(901, &mut read).unwrap_err().to_string();
        assert!(
            error.contains("the number of estimates differs from the number of nodes"),
            "{error}"
        );
    }
    // The body announces more estimates than it has.
    let body = [&1u32.to_le_bytes()[..], &9u32.to_le_bytes(), &[1, 2, 3]].concat();
    let mut wrong = Vec::new();
    let open = Open::new(&mut wrong);
    wrong.extend(body);
    open.close(6u8, Head::default(), &mut wrong);
    let frame = Frame::decode(&wrong).unwrap().unwrap();
    assert!(matches!(
        Message::decode(&frame),
        Err(WireError::Body { .. })
    ));
}

#[test]
fn a_change_has_the_ids_and_rows_that_went_into_it() {
    let mut bytes = Vec::new();
    let (upserts, deletes) = ([7, u64::MAX], [9]);
    let token = Token {
        run: 1,
        client: 2,
        number: 3,
    };
    append_change(
        Head::default(),
        token,
        (4, &[1, 3]),
        (&upserts, b"rows", &deletes),
        &mut bytes,
    );
    let frame = Frame::decode(&bytes).unwrap().unwrap();
    let Message::Change {
        token: told,
        wanted,
        upserts: came,
        deletes: gone,
        rows,
    } = Message::decode(&frame).unwrap()
    else {
        panic!("{frame:?}");
    };
    assert_eq!((told, rows), (token, &b"rows"[..]));
    assert_eq!(came.iter().collect::<Vec<_>>(), upserts);
    assert_eq!(gone.iter().collect::<Vec<_>>(), deletes);
    assert_eq!(
        [1, 2, 3, 4].map(|n| wanted.has(n)),
        [true, false, true, false]
    );
    let head = Head {
        id: 5,
        ..Head::default()
    };
    let mut again = Vec::new();
    append_change_body(head, false, frame.body, &mut again);
    let same = Frame::decode(&again).unwrap().unwrap();
    assert_eq!(
        (same.head, same.kind, same.body),
        (head, frame.kind, frame.body)
    );
    again.clear();
    append_give_up(head, token, (4, &[3]), &mut again);
    let frame = Frame::decode(&again).unwrap().unwrap();
    let mut same = Vec::new();
    append_change_body(head, true, frame.body, &mut same);
    assert_eq!(again, same);
}

#[test]
fn nobody_asks_for_a_change_that_its_client_does_not_wait_for() {
    for (newest, wanted) in [(4, &[1, 2][..]), (2, &[3]), (4, &[])] {
        let token = Token {
            number: 3,
            ..Token::default()
        };
        let (head, mut bytes) = (Head::default(), Vec::new());
        append_give_up(head, token, (newest, wanted), &mut bytes);
        append_change(head, token, (newest, wanted), (&[], b"", &[]), &mut bytes);
        let first = Frame::decode(&bytes).unwrap().unwrap();
        let second = Frame::decode(&bytes[first.bytes()..]).unwrap().unwrap();
        for frame in [first, second] {
            assert!(matches!(
                Message::decode(&frame),
                Err(WireError::Body { .. })
            ));
        }
    }
}
