//! The floor: the work of all nodes in one process, on one thread.

use super::transport::{Each, Outlet, Policy, Topic, Transport};
use crate::Outcome;
use crate::systems::Kind;

pub struct Alone;

impl Transport for Alone {
    fn name(&self) -> &'static str {
        "one process"
    }

    fn kind(&self) -> Kind {
        Kind::Floor
    }

    fn package(&self) -> Option<&'static str> {
        None
    }

    fn options(&self) -> &'static str {
        "one thread calls the work of all nodes"
    }

    fn nodes(&self) -> &'static [&'static str] {
        &["all"]
    }

    fn publish(&self, _robot: &str, _topic: Topic) -> Outcome<Box<dyn Outlet>> {
        Err("one process has no topics".into())
    }

    fn receive(&self, _robot: &str, _: Topic, _: Policy, _: &mut Each<'_>) -> Outcome<()> {
        Err("one process has no topics".into())
    }
}
