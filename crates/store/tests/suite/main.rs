//! The trace directory from outside: what is written is read, by us and by babeltrace2.

mod babeltrace;
mod common;
mod corpus;
mod files;
mod hostile;
