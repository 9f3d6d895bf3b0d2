//! No spans: calls without the feature `traces`.

use std::sync::Arc;

use crate::channel::message::{MessageKind, RequestId};
use crate::channel::metadata::Metadata;
use crate::error::{Error, Result};
use crate::link::link::Link;

#[derive(Debug)]
pub(crate) struct CallSpan;

impl CallSpan {
    #[inline(always)]
    pub(crate) fn begin(_: impl FnOnce() -> Option<Arc<Link>>) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn carry(&mut self, _: &Metadata) -> Option<Metadata> {
        None
    }

    #[inline(always)]
    pub(crate) fn end<T>(self, _: &Result<T>) {}
}

#[derive(Debug, Default)]
pub(crate) struct CallSpans;

impl CallSpans {
    #[inline(always)]
    pub(crate) fn insert(&mut self, _: RequestId, _: CallSpan) {}

    #[inline(always)]
    pub(crate) fn end(&mut self, _: RequestId, _: Option<&Error>) {}

    #[inline(always)]
    pub(crate) fn abandon(&mut self, _: RequestId) {}
}

pub(crate) struct HandlerSpan;

impl HandlerSpan {
    #[inline(always)]
    pub(crate) fn begin(_: MessageKind, _: &Metadata) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(self, _: Option<()>) {}
}
