//! The parts of HTTP that fuzz targets reach: the JSON of an inference request, and whole requests.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, HeaderValue};
use hyper::{Request, StatusCode};
use slipring::{DType, Shape};

use crate::fuzzing::{front, models, run};
use crate::http::buffer::BufferLimit;
use crate::http::coding::Coding;
use crate::http::data;
use crate::http::handle::handle;
use crate::http::infer_json::{self, InferJson};
use crate::http::reply::{BodyChunks, HEADER_LENGTH, Reply};
use crate::json::Node;
use crate::metadata::DTYPES;
use crate::request::{InferRequest, InputData, RequestInput, ResponseOutput};
use crate::validation;

/// Reads any bytes as the JSON of a request. Data that was read must survive a write and a second read, and every
/// input that validation accepts must have the length of its shape.
pub fn head(text: &[u8]) {
    let Ok(head) = infer_json::read(text) else { return };
    let InferJson { id, parameters, inputs, tails, outputs, binary, .. } = head;
    assert_eq!((inputs.len(), outputs.len()), (tails.len(), binary.len()));
    inputs.iter().zip(&tails).filter(|(_, tail)| tail.is_none()).for_each(|(input, _)| {
        let Some((dtype, shape)) = described(input) else { return };
        // The others have no JSON.
        let has_json = DTYPES.contains(&dtype) && !matches!(dtype, DType::Fp16 | DType::Bf16);
        if let InputData::Inline(bytes) = &input.data
            && has_json
        {
            assert_eq!(again(dtype, shape, bytes), bytes);
        }
    });
    let (model, version) = (String::new(), None);
    let request = InferRequest { model, version, id, parameters, inputs, outputs };
    for model in models() {
        let Ok(checked) = validation::validate(&model.0, &request) else { continue };
        for (input, (dtype, shape)) in request.inputs.iter().zip(checked.inputs) {
            assert_eq!(described(input), Some((dtype, shape)));
            if let (InputData::Inline(bytes), Ok(Some(len))) = (&input.data, shape.byte_len(dtype))
            {
                assert_eq!(bytes.len(), len);
            }
        }
    }
}

fn described(input: &RequestInput) -> Option<(DType, Shape)> {
    Some((input.datatype.parse().ok()?, Shape::try_from(&input.shape[..]).ok()?))
}

fn limit() -> BufferLimit {
    BufferLimit { charge: front().charge(), most: u64::MAX }
}

/// Returns a tensor after a round trip through JSON.
fn again(dtype: DType, shape: Shape, bytes: &[u8]) -> Bytes {
    let output = ResponseOutput { name: String::new(), dtype, shape, data: None };
    let mut text = Vec::new();
    data::write(&output, bytes, &mut text).unwrap();
    data::read(dtype, &shape, Node::document(&text).unwrap()).unwrap()
}

/// A body in pieces. The flag tells whether it is cut off.
struct PieceBody(VecDeque<Bytes>, bool);

impl http_body::Body for PieceBody {
    type Data = Bytes;
    type Error = StatusCode;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StatusCode>>> {
        Poll::Ready(match self.0.pop_front() {
            Some(piece) => Some(Ok(Frame::data(piece))),
            None => self.1.then_some(Err(StatusCode::BAD_REQUEST)),
        })
    }
}

/// The way in which a body travels.
#[derive(Clone, Copy)]
struct Travel {
    /// Bytes that arrive at a time.
    piece: usize,
    /// The client sends the length, if the body is plain.
    is_told: bool,
    /// The body is cut off.
    is_cut: bool,
    coding: Option<Coding>,
    /// The body is declared as compressed, but sent as it is.
    is_coded: bool,
}

const PLAIN: Travel =
    Travel { piece: usize::MAX, is_told: true, is_cut: false, coding: None, is_coded: false };

impl Travel {
    fn of(flags: u8, piece: u8) -> Self {
        let coding = [None, None, Some(Coding::Gzip), Some(Coding::Deflate)];
        Self {
            piece: usize::from(piece) + 1,
            is_told: flags & 1 != 0,
            is_cut: flags & 2 != 0,
            coding: coding[usize::from(flags >> 2 & 3)],
            is_coded: flags >> 4 & 3 == 3,
        }
    }

    /// Returns whether the same plain bytes arrive as in any other way.
    fn is_true(self) -> bool {
        !self.is_cut && (self.coding.is_none() || !self.is_coded)
    }

    fn request(self, model: &str, json_len: Option<u16>, plain: &[u8]) -> Request<PieceBody> {
        let path = format!("/v2/models/{model}/infer");
        let mut request = Request::post(path);
        if let Some(len) = json_len {
            request = request.header(HEADER_LENGTH, HeaderValue::from(len));
        }
        let coded = match self.coding {
            Some(coding) if !self.is_coded => {
                coding.encode(&BodyChunks::from(plain.to_vec()), limit()).unwrap().to_vec()
            }
            _ => plain.to_vec(),
        };
        if self.is_told {
            request = request.header(CONTENT_LENGTH, HeaderValue::from(coded.len()));
        }
        if let Some(coding) = self.coding {
            request = request.header(CONTENT_ENCODING, coding.header());
        }
        let pieces = coded.chunks(self.piece).map(Bytes::copy_from_slice).collect();
        request.body(PieceBody(pieces, self.is_cut)).unwrap()
    }
}

/// Sends an inference request: `model | flags | bytes at a time | length of the JSON u16 | body`. The response must be
/// the same for every way in which the body travels.
pub fn body(input: &[u8]) {
    let [model, flags, piece, len @ ..] = input else { return };
    let Some((len, plain)) = len.split_first_chunk() else { return };
    let models = models();
    let name = models[usize::from(*model) % models.len()].0.name();
    let len = match flags >> 6 {
        0 => None,
        1 => Some(0),
        _ => Some(u16::from_le_bytes(*len)),
    };
    let way = Travel::of(*flags, *piece);
    let answer = |way: Travel| sound(run(handle(front(), way.request(name, len, plain))));
    let answered = answer(way);
    if way.is_true() {
        assert_eq!(answered, answer(PLAIN), "{name} {len:?}");
    }
    if flags >> 4 & 3 == 2 {
        // The response must also be valid when it is compressed.
        let mut request = PLAIN.request(name, len, plain);
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("deflate"));
        let reply = run(handle(front(), request));
        assert!(!reply.status().is_success() || reply.headers().contains_key(CONTENT_ENCODING));
    }
}

/// Asserts that a client can read the response. Returns its status and bytes.
fn sound(reply: Reply) -> (StatusCode, Bytes) {
    let (head, pieces) = reply.into_parts();
    let all = pieces.join();
    let len = head.headers.get(HEADER_LENGTH).map(|len| len.to_str().unwrap().parse().unwrap());
    let (text, tail) = all.split_at(len.unwrap_or(all.len()));
    let root = Node::document(text).unwrap();
    if head.status == StatusCode::OK {
        let outputs = root.get("outputs").unwrap();
        let lens = outputs
            .items()
            .filter_map(|output| output.get("parameters")?.get("binary_data_size")?.unsigned());
        assert_eq!(lens.sum::<u64>(), tail.len() as u64);
    } else {
        assert!(head.status.is_client_error() || head.status.is_server_error());
        assert!(root.get("error").unwrap().string().is_some() && tail.is_empty());
    }
    (head.status, all)
}
