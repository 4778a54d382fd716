//! Real programs, recorded under load and counted exactly.

mod attach;
mod forks;
mod kernel;
mod mini_redis;
mod paced;
mod web;
