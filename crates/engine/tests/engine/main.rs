//! The engine as a program uses it through the library. Indexes are built from real data, opened,
//! searched, changed, damaged and replaced. All tests are one program, because each program would
//! be linked with the whole engine again.

mod attributes;
mod bounds;
mod catalog;
mod direct;
mod drift;
mod empty;
mod equal;
mod few;
mod fixtures;
mod frozen;
mod further;
mod grown;
mod index;
mod kept;
mod lengths;
mod lent;
mod many;
mod press;
mod recall;
mod replaced;
mod submit;
mod unpacked;
mod watched;
