//! The metrics of a front in Prometheus' text format, under the reference server's names.

use std::time::Duration;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Encoder, TEXT_FORMAT, TextEncoder};

use crate::front::Front;
use crate::http::{self, BodyChunks};
use crate::listener::Socket;
use crate::repository::ModelEntry;
use crate::shutdown::Shutdown;
use crate::statistics::{Counts, Statistics, Tally};

/// A metric of each version of each model: its name, its help text, and its value.
type OfVersion = (&'static str, &'static str, fn(&Counts) -> u64);

fn micros(tally: &Tally) -> u64 {
    Duration::from_nanos(tally.ns).as_micros() as u64
}

const COUNTERS: [OfVersion; 9] = [
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        |counts| counts.success.count,
    ),
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        |counts| counts.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        |counts| counts.execution_count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        |counts| micros(&counts.success),
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        |counts| micros(&counts.queue),
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        |counts| micros(&counts.compute_input),
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        |counts| micros(&counts.compute_infer),
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        |counts| micros(&counts.compute_output),
    ),
    (
        "nv_inference_request_failure",
        "Number of failed inference requests, all batch sizes",
        |counts| counts.fail.count,
    ),
];

/// The counter that has a reason, too.
const WITH_REASON: &str = "nv_inference_request_failure";

fn labels(pairs: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    pairs.iter().map(pair).collect()
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Returns a metric of each version of each model.
fn counters((name, help, value): OfVersion, models: &[(&str, String, Counts)]) -> MetricFamily {
    let metric = |(model, version, counts): &(&str, String, Counts)| {
        let mut pairs = vec![("model", *model), ("version", version.as_str())];
        if name == WITH_REASON {
            pairs.push(("reason", "OTHER"));
        }
        let mut counter = Counter::default();
        counter.set_value(value(counts) as f64);
        let mut metric = Metric::from_label(labels(&pairs));
        metric.set_counter(counter);
        metric
    };
    family(name, help, MetricType::COUNTER, models.iter().map(metric).collect())
}

/// Returns how many requests of each model wait for an instance or a thread.
fn pending<'a>(models: impl Iterator<Item = &'a ModelEntry>) -> MetricFamily {
    let metric = |entry: &ModelEntry| {
        let version = entry.metadata.versions.last().map(u64::to_string).unwrap_or_default();
        let mut gauge = Gauge::default();
        gauge.set_value(entry.instances.waiting() as f64);
        let pairs = [("model", entry.metadata.name.as_str()), ("version", &version)];
        let mut metric = Metric::from_label(labels(&pairs));
        metric.set_gauge(gauge);
        metric
    };
    let help = "Instantaneous number of pending requests awaiting execution per-model.";
    let metrics = models.map(metric).collect();
    family("nv_inference_pending_request_count", help, MetricType::GAUGE, metrics)
}

impl Front {
    /// Returns the metrics of all models in Prometheus' text format, version 0.0.4, under the names of the reference server:
    /// `nv_inference_request_success`, `nv_inference_request_failure`, `nv_inference_count`, `nv_inference_exec_count`,
    /// `nv_inference_pending_request_count`, and the sums of durations in microseconds. Their labels are `model` and `version`.
    ///
    /// [`Protocol::Metrics`](crate::Protocol::Metrics) serves them.
    ///
    /// # Examples
    ///
    /// ```
    /// let front = slipring_triton::Front::builder().build()?;
    /// assert_eq!(front.metrics(), ""); // there is no model
    /// # Ok::<(), slipring_triton::BuildError>(())
    /// ```
    pub fn metrics(&self) -> String {
        let entries = self.repository().models();
        let counts: Vec<(&str, String, Counts)> = entries
            .iter()
            .flat_map(|entry| {
                let name = entry.metadata.name.as_str();
                let of = move |(version, statistics): (u64, &Statistics)| {
                    (name, version.to_string(), statistics.counts())
                };
                entry.all_statistics().map(of)
            })
            .collect();
        if counts.is_empty() {
            return String::new();
        }
        let mut families: Vec<_> =
            COUNTERS.into_iter().map(|metric| counters(metric, &counts)).collect();
        families.push(pending(entries.iter().map(|entry| &**entry)));
        let mut text = Vec::new();
        // Writes to memory do not fail, and every family has a metric.
        let encoded = TextEncoder::new().encode(&families, &mut text);
        debug_assert!(encoded.is_ok(), "{encoded:?}");
        String::from_utf8(text).unwrap_or_default()
    }
}

/// Serves `GET /metrics` on one address until the shutdown.
pub(crate) async fn serve(front: Front, socket: Socket, most: usize, shutdown: Shutdown) {
    let limits = *front.limits();
    let respond = move |request| {
        let response = respond(&front, &request);
        async move { response }
    };
    http::serve_with(respond, socket, &limits, most, shutdown).await;
}

fn respond<B>(front: &Front, request: &Request<B>) -> Response<BodyChunks> {
    let mut response = Response::new(BodyChunks::default());
    if request.uri().path() != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
    } else if request.method() != Method::GET {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
        response.body_mut().push(front.metrics());
    }
    response
}
