//! Real programs, recorded under load and counted exactly.

mod forks;
mod mini_redis;
mod paced;
mod web;
