//! Requests and responses with tensors, as the receiver takes them.

use crate::channel::attachment::Claims;
use crate::channel::backlog::KeptMessage;
use crate::channel::inbox::awaited::Awaited;
use crate::channel::inbox::receiver::Receiver;
use crate::channel::message::{MessageKind, RequestId};
use crate::channel::metadata::Metadata;
use crate::channel::pipeline::{REQUESTS, Wanted};
use crate::error::{Error, ErrorKind, Result, TryRecvError};
use crate::patience::RecvPatience;

/// A response with tensors or without.
pub(crate) enum AnyResponse<T> {
    Bytes(Vec<u8>, Metadata),
    Tensors(T),
}

impl Receiver {
    /// Calls `open` with the description and the attachments of the next request with tensors. If `open` fails, the link
    /// ends. `None`: the peer has closed in order.
    pub(crate) fn open_request<T>(
        &mut self,
        patience: RecvPatience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<Option<(RequestId, T)>, TryRecvError> {
        let kept = self.kept(Awaited::TensorRequest, patience, None)?;
        let Some(kept) = kept else { return Ok(None) };
        let MessageKind::TensorRequest(id) = kept.kind else { return Ok(None) };
        Ok(Some((id, self.open_kept(kept, open)?)))
    }

    /// Calls `open` with the description and the attachments of the response to a request. If `open` fails, the link ends.
    pub(crate) fn open_response<T>(
        &mut self,
        id: RequestId,
        patience: RecvPatience,
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<T, TryRecvError> {
        if !self.calls.is_made(id) {
            return Err(Error::from(ErrorKind::UnknownRequest { id: id.0 }).into());
        }
        let kept = self.kept_response(&[id], Awaited::TensorResponse(id), patience, None)?;
        let kept = kept.ok_or_else(|| Error::from(ErrorKind::PeerClosed))?;
        let opened = self.open_kept(kept, open);
        self.calls.finish(id, opened.as_ref().err());
        Ok(opened?)
    }

    /// Returns the response to one of these requests, as [`kept`](Self::kept) does. The requests fail with the link.
    #[inline(always)]
    pub(super) fn kept_response(
        &mut self,
        ids: &[RequestId],
        awaited: Awaited<'_>,
        patience: RecvPatience,
        copies: Wanted,
    ) -> Result<Option<KeptMessage>, TryRecvError> {
        let kept = self.kept(awaited, patience, copies);
        match &kept {
            Ok(None) => self.fail_calls(ids, &ErrorKind::PeerClosed.into()),
            Err(TryRecvError::Failed(error)) => self.fail_calls(ids, error),
            _ => {}
        }
        kept
    }

    /// Returns the response to a request as [`body_at_once`](Self::body_at_once) does.
    pub(super) fn response_at_once(
        &mut self,
        id: RequestId,
        patience: RecvPatience,
    ) -> Result<Option<Vec<u8>>, TryRecvError> {
        let taken = self.body_at_once(Awaited::Response(id), patience).and_then(|found| {
            let Some((_, body)) = found else { return Ok(None) };
            Ok(self.take_call(id)?.then_some(body))
        });
        if let Err(TryRecvError::Failed(error)) = &taken {
            self.fail_calls(&[id], error);
        }
        taken
    }

    /// Ends the spans of requests, if the error is that of the link's end: no response comes any more.
    #[cold]
    fn fail_calls(&mut self, ids: &[RequestId], error: &Error) {
        let link = &self.session().link;
        let is_end = match error.kind() {
            ErrorKind::PeerClosed | ErrorKind::PeerDied => true,
            kind => !link.is_alive() && link.end().kind() == kind,
        };
        if is_end {
            ids.iter().for_each(|id| self.calls().fail(*id, error));
        }
    }

    /// Takes a response to one of these requests, without waiting. Calls `open` with tensors. If `open` fails, the link ends.
    pub(crate) fn any_response<T>(
        &mut self,
        ids: &[RequestId],
        open: impl FnOnce(&[u8], &mut Claims<'_>) -> Result<T>,
    ) -> Result<(RequestId, AnyResponse<T>), TryRecvError> {
        let awaited = Awaited::AnyResponse(ids);
        let kept = self.kept_response(ids, awaited, RecvPatience::None, REQUESTS)?;
        let answered = kept.and_then(|kept| Some((kept.kind.answers()?, kept)));
        let (id, kept) = answered.ok_or_else(|| Error::from(ErrorKind::PeerClosed))?;
        if kept.kind.has_tensors() {
            let opened = self.open_kept(kept, open);
            self.calls.finish(id, opened.as_ref().err());
            return Ok((id, AnyResponse::Tensors(opened?)));
        }
        self.calls.finish(id, None);
        Ok((id, AnyResponse::Bytes(kept.body, kept.metadata)))
    }
}
