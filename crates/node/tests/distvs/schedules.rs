//! Many schedules of the simulated network: each query gets a correct answer or fails by its
//! deadline, and is answered after the last fault.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stratann_node::role::{Asked, ComputeOptions, Doubt, Failure, Found, Narrowing, Outcome};
use stratann_node::wire::Reason;

use crate::halves::{DIM, Random, World, press};
use crate::network::{Network, Plan, Query, Step, mark};

fn worlds() -> [Arc<World>; 2] {
    [
        Arc::new(World::new(1000, 240)),
        Arc::new(World::new(2000, 260)),
    ]
}

fn peace() -> Plan {
    Plan {
        lost: 0,
        doubled: 0,
        delay: 400,
        kills: 0,
        cuts: 0,
        changes: false,
        merges: false,
        behind: None,
        vouch: ComputeOptions::default().vouch,
        counting: 0,
        calm: Duration::from_millis(20),
        compute: 2,
        workers: 2,
        in_flight: 2,
        waiting: 64,
        low_memory: vec![u64::MAX, 900],
        queries: 24,
        late: 3,
        idle: Duration::ZERO,
        written: 3,
        failing: 0,
        remembered: None,
        twins: false,
        patience: (2_000_000, 2_000_000),
    }
}

fn trouble(seed: u64) -> Plan {
    let mut random = Random(seed ^ 0xABCD);
    let hard = random.below(3);
    let long = random.chance(50);
    let how = random.below(100);
    Plan {
        lost: random.below(1 + 8 * hard),
        doubled: random.below(1 + 10 * hard),
        delay: 100 + random.below(3000),
        kills: random.below(5),
        cuts: random.below(5),
        changes: how < 40,
        merges: how >= 60,
        behind: None,
        vouch: match seed.is_multiple_of(2) {
            true => Duration::from_millis(5),
            false => Duration::MAX,
        },
        // Counting lasts up to twice as long as a connection may be silent, or it takes no time.
        counting: if seed % 4 == 1 {
            0
        } else {
            random.below(80) as u32
        },
        calm: Duration::from_millis(50 + random.below(150)),
        compute: 1 + random.below(3) as usize,
        workers: 1 + random.below(3) as u16,
        in_flight: 1 + random.below(4) as usize,
        waiting: if random.chance(20) { 2 } else { 64 },
        queries: 1 + random.below(30),
        written: random.below(4),
        failing: 10 * hard,
        remembered: seed.is_multiple_of(5).then_some(1),
        twins: seed.is_multiple_of(3),
        late: 2,
        idle: Duration::ZERO,
        // The worlds have 240 and 260 nodes with low codes of 8 bytes: space for all, some or none.
        low_memory: (0..3)
            .map(|_| [u64::MAX, random.below(2100), 0][random.below(3) as usize])
            .collect(),
        patience: if long {
            (3_000_000, 4_000_000)
        } else {
            (500, 200_000)
        },
    }
}

/// Checks that the reply about a change agrees with storage.
fn told_rightly(network: &Network, query: &Query, context: &str) {
    let Asked::Change {
        upserts,
        rows,
        deletes,
    } = &query.asks
    else {
        return;
    };
    let mark = mark(upserts, rows, deletes);
    let made = || network.journal.iter().filter(|entry| entry.mark == mark);
    for entry in made() {
        let same = made().filter(|other| other.run == entry.run);
        assert_eq!(
            same.count(),
            1,
            "a change was made twice in a run: {context}"
        );
    }
    let Some((told, outcome)) = query.last() else {
        return;
    };
    match outcome {
        Ok(Outcome::Changed { again, .. }) => {
            let before = made().filter(|entry| entry.at <= *told).count();
            assert_eq!(
                before,
                made().count(),
                "the change was made after its answer: {context}"
            );
            assert!(before == 1 || before > 1 && *again, "{before}: {context}");
        }
        Ok(_) => {}
        Err(failure) => match failure.doubt() {
            Doubt::Nothing => {
                assert_eq!(made().count(), 0, "the refused change was made: {context}")
            }
            Doubt::Perhaps => {
                let later = made().find(|entry| entry.at > *told);
                assert_eq!(
                    later, None,
                    "the change was made after the client was told of its end: {context}"
                );
            }
            Doubt::Yet => {}
        },
    }
}

fn run(seed: u64, plan: &Plan, worlds: &[Arc<World>; 2]) -> (u64, u64, u64) {
    let mut network = Network::new(seed, plan.clone(), worlds);
    network.run();
    let (mut answered, mut failed, mut broken) = (0, 0, 0);
    let was_made = |id| {
        let mut of = network.queries.iter();
        let last = of.find(|query| query.of == Some((id, Step::ReplaceAgain)));
        matches!(
            last.and_then(|query| query.ended.as_ref()),
            Some((_, Ok(Outcome::Changed { .. })))
        )
    };
    let kept = |server: usize| {
        let bytes = plan.low_memory[server % plan.low_memory.len()];
        u32::try_from(bytes / DIM as u64).unwrap_or(u32::MAX)
    };
    for (number, query) in network.queries.iter().enumerate() {
        let context = format!("seed {seed}, query {number}: {query:?}, {plan:?}");
        let (ended, outcome) = query.ended.as_ref().unwrap();
        assert!(
            *ended <= query.deadline + Duration::from_micros(1),
            "the query ended after its deadline: {context}"
        );
        told_rightly(&network, query, &context);
        match outcome {
            Ok(Outcome::Changed { changed, again }) => {
                let (id, step) = query.of.expect("the query is no change");
                let right = match step {
                    Step::Insert
                    | Step::Replace
                    | Step::Dropped
                    | Step::Stopped
                    | Step::Twin
                    | Step::ReplaceAgain => changed.upserted == 1 && changed.deleted == 0,
                    // A killed run of storage may have deleted the id.
                    Step::Delete => changed.deleted == 1 || *again || !was_made(id),
                    _ => false,
                };
                assert!(right, "{changed:?}: {context}");
                answered += 1;
            }
            Ok(Outcome::Found(found)) if query.of.is_some() => {
                let (id, step) = query.of.unwrap();
                let is = found.ids[0] == id && found.distances[0] == 0.0;
                let right = is == matches!(step, Step::Inserted | Step::Replaced);
                assert!(
                    right,
                    "a search contradicts an acknowledged change: {context}"
                );
                assert!(!found.ids[1..].contains(&id), "{context}");
                answered += 1;
            }
            Ok(Outcome::Found(Found {
                ids,
                distances,
                counters,
                state,
            })) => {
                answered += 1;
                let world = worlds
                    .iter()
                    .find(|world| world.state == *state)
                    .expect("the answer names an unknown state");
                let Asked::Search { k, list, beam, row } = &query.asks else {
                    panic!("{context}");
                };
                let (list, beam) = (
                    if *list == 0 { 24 } else { *list },
                    if *beam == 0 { 2 } else { *beam },
                );
                let sizes = (list as usize, beam as usize);
                // The costs depend on the low codes of the compute server that answered.
                let kept = kept(query.by.expect("the answering server is unknown"));
                let narrowing = Narrowing::default();
                let expected = press(world, row, *k as usize, sizes, narrowing, kept);
                let found = (counters.low, counters.high, counters.steps);
                let took = (expected.low, expected.high, expected.steps);
                let right = (ids, distances, counters.full)
                    == (&expected.ids, &expected.distances, expected.full)
                    && (counters.restarts > 0 || found == took);
                assert!(right, "{context}");
            }
            Ok(Outcome::Collection(collection)) => {
                let known = worlds.iter().any(|world| world.state == collection.state);
                assert!(known, "{context}");
                // For a step of an id, the network puts a description in place of the outcome of a
                // forgotten change.
                answered += u64::from(query.of.is_some());
            }
            Err(Failure::Refused {
                reason: Reason::GivenUp | Reason::OtherState | Reason::Over,
                ..
            }) if query.of.is_some_and(|(_, step)| step == Step::Stopped) => answered += 1,
            Err(Failure::Refused {
                reason: Reason::GivenUp,
                ..
            }) if query.of.is_some() => failed += 1,
            Err(Failure::Refused {
                reason: Reason::Failed,
                ..
            }) if query.of.is_some() && plan.failing > 0 => broken += 1,
            Err(Failure::Refused {
                reason: Reason::Deadline,
                text,
                ..
            }) => {
                failed += 1;
                let named = ["memory", "storage", "compute"]
                    .iter()
                    .any(|name| text.contains(name));
                assert!(named, "{context}");
            }
            Err(Failure::Refused { .. }) => panic!("refused: {context}"),
            Err(Failure::Deadline { trouble, .. }) => {
                failed += 1;
                assert!(!trouble.is_empty() && *ended >= query.deadline, "{context}");
            }
        }
    }
    (answered + broken, failed, network.events_done)
}

#[test]
fn where_nothing_goes_wrong_all_is_as_in_one_process() {
    let worlds = worlds();
    for seed in 0..20 {
        let (answered, failed, _) = run(seed, &peace(), &worlds);
        assert_eq!((answered, failed), (24 + 3 + 3 * Step::ALL.len() as u64, 0));
    }
}

#[test]
fn a_merge_costs_no_query() {
    let worlds = worlds();
    let (mut late, mut restarts) = (0, 0);
    for seed in 0..40 {
        let plan = Plan {
            merges: true,
            calm: Duration::from_millis(40),
            queries: 100,
            ..peace()
        };
        let (answered, failed, _) = run(seed, &plan, &worlds);
        assert_eq!(
            (answered, failed),
            (100 + 3 + 3 * Step::ALL.len() as u64, 0)
        );
        let mut network = Network::new(seed, plan, &worlds);
        network.run();
        let last = network
            .queries
            .iter()
            .filter_map(|query| query.ended.clone());
        let last = last.max_by_key(|&(ended, _)| ended).unwrap();
        restarts += network.restarts();
        if last.0 > Duration::from_millis(90) {
            let Ok(Outcome::Found(Found { state, .. })) = last.1 else {
                continue;
            };
            assert_eq!(state, worlds[1].state, "seed {seed}");
            late += 1;
        }
    }
    assert!(late > 10 && restarts < 400, "{late}, {restarts}");
}

/// Storage ranks in a connected memory server's state, even after minutes without a search.
#[test]
fn a_memory_server_that_stays_behind_is_ranked_for_after_minutes_without_a_query() {
    let worlds = worlds();
    let seconds = Duration::from_secs;
    let never = seconds(1 << 30);
    for (behind, idle, expected) in [
        (never, seconds(120), 0),
        (never, seconds(3600), 0),
        (seconds(180), seconds(120), 0),
        (seconds(180), seconds(600), 1),
    ] {
        for seed in 0..10 {
            let plan = Plan {
                merges: true,
                behind: Some(behind),
                idle,
                queries: 10,
                written: 1,
                ..peace()
            };
            let context = format!("seed {seed}, {behind:?}, {idle:?}");
            let (answered, failed, _) = run(seed, &plan, &worlds);
            let all = 10 + 3 + Step::ALL.len() as u64;
            assert_eq!((answered, failed), (all, 0), "{context}");
            let mut network = Network::new(seed, plan, &worlds);
            network.run();
            let ended = network.queries.iter().filter_map(|query| query.last());
            let late = ended.filter(|(at, _)| *at > idle);
            let states: Vec<u64> = late
                .filter_map(|(_, outcome)| match outcome {
                    Ok(Outcome::Found(found)) => Some(found.state),
                    _ => None,
                })
                .collect();
            assert_eq!(states, [worlds[expected].state; 3], "{context}");
            // If storage kept the state longer, the next merge would wait.
            assert_eq!(network.has_before(), expected == 0, "{context}");
        }
    }
}

/// Storage drops an earlier state within a minute after all servers name the new one.
#[test]
fn the_state_before_is_given_up_once_all_have_gone_on() {
    let worlds = worlds();
    let seconds = Duration::from_secs;
    for seed in 0..20 {
        for (behind, has_before) in [(seconds(1), false), (seconds(1 << 30), true)] {
            let plan = Plan {
                merges: true,
                behind: Some(behind),
                idle: seconds(20),
                queries: 10,
                written: 1,
                ..peace()
            };
            let mut network = Network::new(seed, plan.clone(), &worlds);
            network.run();
            let context = format!("seed {seed}, {behind:?}");
            assert_eq!(network.has_before(), has_before, "{context}");
            let (answered, failed, _) = run(seed, &plan, &worlds);
            let all = 10 + 3 + Step::ALL.len() as u64;
            assert_eq!((answered, failed), (all, 0), "{context}");
        }
    }
}

/// The popularity of nodes is computed once. Requests that do not need it do not wait.
#[test]
fn counting_how_popular_nodes_are_costs_no_connection() {
    let worlds = worlds();
    for seed in 0..20 {
        let plan = Plan {
            counting: 200,
            ..peace()
        };
        let (answered, failed, _) = run(seed, &plan, &worlds);
        assert_eq!((answered, failed), (24 + 3 + 3 * Step::ALL.len() as u64, 0));
        let mut network = Network::new(seed, plan, &worlds);
        network.run();
        assert_eq!((network.counted, network.silences), (200, 0), "seed {seed}");
        let early = |query: &&Query| {
            let (ended, outcome) = query.ended.as_ref().unwrap();
            *ended < Duration::from_millis(100) && matches!(outcome, Ok(Outcome::Found(_)))
        };
        assert!(
            network.queries.iter().filter(early).count() > 5,
            "seed {seed}"
        );
    }
}

#[test]
fn in_one_schedule_the_same_happens_again() {
    let worlds = worlds();
    for seed in [3, 4] {
        assert_eq!(
            run(seed, &trouble(seed), &worlds),
            run(seed, &trouble(seed), &worlds)
        );
    }
}

/// Runs a thousand schedules, or ten thousand with STRATANN_SLOW=1; `STRATANN_SEED` selects one.
#[test]
fn no_schedule_has_a_wrong_answer_or_a_query_that_hangs() {
    let worlds = worlds();
    let one = std::env::var("STRATANN_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let count = if std::env::var_os("STRATANN_SLOW").is_some() {
        10_000
    } else {
        1000
    };
    let (mut answered, mut failed, mut events) = (0, 0, 0);
    let began = Instant::now();
    for seed in one.map_or(0..count, |seed: u64| seed..seed + 1) {
        let plan = trouble(seed);
        let of = run(seed, &plan, &worlds);
        if plan.patience.0 > 1_000_000 {
            assert_eq!(
                of.1, 0,
                "seed {seed}: queries fail although the network works for seconds: {plan:?}"
            );
        }
        (answered, failed, events) = (answered + of.0, failed + of.1, events + of.2);
    }
    println!(
        "{answered} queries answered, {failed} failed, {events} events in {:?}",
        began.elapsed()
    );
    if one.is_none() {
        assert!(
            answered > failed && failed > 100,
            "too few or too many queries fail, so the schedules prove little"
        );
    }
}
