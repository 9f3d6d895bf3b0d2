//! No spans: inferences without the feature `traces`.

use std::future::Future;

use hyper::HeaderMap;

use crate::refusal::Refusal;

#[derive(Debug, Clone)]
pub(crate) struct Parent;

impl Parent {
    pub(crate) fn of(_: &HeaderMap) -> Self {
        Self
    }

    pub(crate) fn http(&self, _: bool) -> InferSpan {
        InferSpan
    }

    pub(crate) fn grpc(&self, _: &'static str) -> InferSpan {
        InferSpan
    }
}

pub(crate) struct InferSpan;

impl InferSpan {
    pub(crate) fn enter<F: Future>(&self, work: F) -> F {
        work
    }

    pub(crate) fn run<F: Future>(self, work: F) -> F {
        work
    }

    pub(crate) fn end(&self, _: Option<&Refusal>) {}
}

pub(crate) fn describe(_: &str, _: u64, _: Option<&str>) {}

pub(crate) fn carried<W>(work: W) -> W {
    work
}
