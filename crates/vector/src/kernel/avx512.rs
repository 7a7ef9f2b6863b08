pub(crate) use super::plain::ROUTINES;
