//! The engine as a program uses it. All tests are one program, because each program is linked with
//! the whole engine again.

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
