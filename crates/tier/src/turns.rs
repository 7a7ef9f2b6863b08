//! Actions that a worker performs once for all work that ended in one round.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Then = Box<dyn FnOnce()>;

thread_local! {
    /// `None` unless the worker is reporting ends of work.
    static WAITS: RefCell<Option<Vec<Then>>> = const { RefCell::new(None) };
}

/// Defers `then` until this worker of a [`WorkerPool`](crate::WorkerPool) has reported all work
/// that ended in its round. On any other thread, `then` runs at once.
pub fn after_turn(then: impl FnOnce() + 'static) {
    let now = WAITS.with_borrow_mut(|waits| match waits {
        Some(waits) => {
            waits.push(Box::new(then));
            None
        }
        None => Some(then),
    });
    if let Some(now) = now {
        now();
    }
}

pub(crate) fn turn(tell: impl FnOnce()) {
    WAITS.set(Some(Vec::new()));
    let told = catch_unwind(AssertUnwindSafe(tell));
    let waits = WAITS.take();
    for then in waits.into_iter().flatten() {
        if catch_unwind(AssertUnwindSafe(then)).is_err() {
            tracing::error!(
                "a deferred action panicked, after the worker had reported all ended work"
            );
        }
    }
    if let Err(panic) = told {
        std::panic::resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn what_is_to_be_done_behind_a_turn_is_done_once_at_its_end_and_elsewhere_at_once() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let say = |what: &'static str| {
            let log = log.clone();
            move || log.borrow_mut().push(what)
        };
        after_turn(say("at once"));
        turn(|| {
            after_turn(say("behind one"));
            say("one")();
            after_turn(|| panic!("on purpose"));
            after_turn(say("behind two"));
            say("two")();
        });
        after_turn(say("at once again"));
        let expected = [
            "at once",
            "one",
            "two",
            "behind one",
            "behind two",
            "at once again",
        ];
        assert_eq!(*log.borrow(), expected);
    }

    #[test]
    fn a_turn_that_panics_leaves_nothing_waiting() {
        let done = Rc::new(RefCell::new(0));
        let count = || {
            let done = done.clone();
            move || *done.borrow_mut() += 1
        };
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            turn(|| {
                after_turn(count());
                panic!("on purpose");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(*done.borrow(), 1);
        after_turn(count());
        assert_eq!(*done.borrow(), 2);
    }
}
