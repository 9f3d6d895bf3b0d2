//! Handles a request, from its header to its reply.

use axum::Router;
use axum::body::Body as AnyBody;
use axum::extract::State;
use axum::routing::any;
use bytes::Bytes;
use http_body::Body;
use hyper::header::{CONNECTION, EXPECT, HeaderValue, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};

use crate::front::Front;
use crate::http::body::Reader;
use crate::http::path::{About, Route, route, unserved};
use crate::http::reply::{self, Reply};
use crate::http::{control, describe, infer, regions};
use crate::json::Node;
use crate::refusal::Refusal;
use crate::spans::Parent;

/// The largest request for the repository index in bytes.
const MAX_INDEX_REQUEST: usize = 64 << 10;

/// Returns a router that serves everything under `/v2`, for an application to merge into its own.
///
/// # Examples
///
/// ```
/// use slipring_triton::{Front, http_router};
///
/// # fn main() -> Result<(), slipring_triton::BuildError> {
/// let front = Front::builder().build()?;
/// let application: axum::Router = axum::Router::new()
///     .route("/metrics", axum::routing::get(|| async { "" }))
///     .merge(http_router(front));
/// # Ok(())
/// # }
/// ```
pub fn router(front: Front) -> Router {
    let serve = |State(front): State<Front>, request: Request<AnyBody>| async move {
        let reply: Response<_> = handle(&front, request).await;
        reply.map(AnyBody::new)
    };
    Router::new().route("/v2", any(serve)).route("/v2/{*rest}", any(serve)).with_state(front)
}

/// Serves one request.
pub(super) async fn handle<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    request: Request<B>,
) -> Reply {
    let (head, body) = request.into_parts();
    let mut body = Reader::new(body, &head.headers, front);
    let mut reply = answer(front, &head, &mut body).await;
    if head.headers.contains_key(EXPECT) && !body.has_begun() {
        // The client waits for `100 Continue` before it sends the body.
        body.abandon();
    }
    body.drain().await;
    if body.is_broken() {
        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    reply
}

async fn answer<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    head: &Parts,
    body: &mut Reader<B>,
) -> Reply {
    if head.headers.contains_key(ORIGIN) && !front.serves_browsers() {
        return reply::error(StatusCode::FORBIDDEN, "requests of web pages are not served");
    }
    let path = head.uri.path();
    if let Some(what) = unserved(path) {
        return Reply::from(Refusal::unserved(what));
    }
    let Some(route) = route(path) else {
        return reply::error(StatusCode::NOT_FOUND, "Not Found");
    };
    if head.method != if route.is_read() { Method::GET } else { Method::POST } {
        return reply::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    }
    let done = match &route {
        Route::Memory { memory, name, operation } => {
            let named = path.contains("/region/");
            regions::serve(front, (*memory, *operation), name, named, body).await
        }
        Route::Model { name, version, about: About::Infer } => {
            let span = Parent::of(&head.headers).http(version.is_some());
            span.run(infer::infer(front, name, *version, &head.headers, body)).await
        }
        Route::Index => index(front, body).await,
        Route::Control { name, load } => control::serve(front, name, *load, body).await,
        Route::NamedRepository => Err(Refusal::repository_name()),
        _ => describe_route(front, &route),
    };
    done.unwrap_or_else(|refusal| {
        // The rest of the body may take its time.
        body.refuse();
        Reply::from(refusal)
    })
}

/// Answers a request that needs no body.
fn describe_route(front: &Front, route: &Route<'_>) -> Result<Reply, Refusal> {
    Ok(match route {
        Route::Server => reply::describing(&describe::server(&front.describe())),
        Route::Live => reply::empty(),
        Route::Ready if front.is_ready() => reply::empty(),
        Route::Ready => reply::with_status(StatusCode::BAD_REQUEST, ""),
        Route::AllStatistics => {
            reply::describing(&describe::statistics(&front.statistics(None, None)?))
        }
        Route::Model { name, version, about } => match about {
            About::Ready if front.is_model_ready(name, *version) => reply::empty(),
            About::Ready => reply::with_status(StatusCode::BAD_REQUEST, ""),
            About::Config => {
                reply::describing(&describe::config(&front.model_config(name, *version)?))
            }
            About::Statistics => {
                reply::describing(&describe::statistics(&front.statistics(Some(name), *version)?))
            }
            About::Metadata | About::Infer => {
                reply::describing(&describe::metadata(&front.model_metadata(name, *version)?))
            }
        },
        Route::Index | Route::Control { .. } | Route::NamedRepository | Route::Memory { .. } => {
            reply::empty()
        }
    })
}

async fn index<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    body: &mut Reader<B>,
) -> Result<Reply, Refusal> {
    let text = body.rest(MAX_INDEX_REQUEST).await?;
    let mut ready = false;
    if !text.is_empty()
        && let Some(wanted) = Node::document(&text)?.get("ready")
    {
        ready = wanted.boolean().ok_or_else(|| Refusal::json_type("boolean"))?;
    }
    Ok(reply::describing(&describe::index(&front.index_of_repository(ready).await?)))
}
