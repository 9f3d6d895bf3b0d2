//! Loads and unloads of models over HTTP.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body::Body;

use crate::blocking::run_blocking_if;
use crate::budget::Charge;
use crate::front::Front;
use crate::http::body::Reader;
use crate::http::infer_json::string;
use crate::http::reply::{self, Reply};
use crate::json::Node;
use crate::load_parameters::{LoadParameter, LoadParameters};
use crate::refusal::Refusal;

/// JSON read on the runtime's own thread: some hundred microseconds.
const READ_INLINE: usize = 64 << 10;

/// The largest request for an unload in bytes.
const MAX_UNLOAD: usize = 64 << 10;

/// The most parameters of a load, each of which takes more memory than its text.
const MAX_PARAMETERS: usize = 1032;

pub(super) async fn serve<B: Body<Data = Bytes> + Unpin>(
    front: &Front,
    name: &str,
    load: bool,
    body: &mut Reader<B>,
) -> Result<Reply, Refusal> {
    front.control().check("")?;
    if !load {
        unload_parameters(&body.rest(MAX_UNLOAD).await?)?;
        front.unload_model(name).await?;
        return Ok(reply::empty());
    }
    let text = body.rest(front.limits().json_bytes).await?;
    let (is_long, charge) = (text.len() > READ_INLINE, body.charge());
    let charged = charge.clone();
    let parameters = run_blocking_if(is_long, move || load_parameters(&text, &charged)).await?;
    // The text is gone.
    charge.set(parameters.byte_len());
    front.load_charged(name, parameters, charge).await?;
    Ok(reply::empty())
}

/// Returns the parameters of a request, which may be empty.
fn parameters(text: &[u8]) -> Result<Option<Node<'_>>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let root = Node::document(text)?;
    let Some(parameters) = root.get("parameters") else { return Ok(None) };
    match parameters.is_object() {
        true => Ok(Some(parameters)),
        false => Err(Refusal::parse("parameters", &Refusal::json_type("object"))),
    }
}

/// Reads the parameters of a load. Files are base64, whose decoded bytes are charged, too.
fn load_parameters(text: &[u8], charge: &Charge) -> Result<LoadParameters, Refusal> {
    let mut told = LoadParameters::new();
    let Some(parameters) = parameters(text)? else { return Ok(told) };
    for (count, (name, value)) in parameters.members().enumerate() {
        if count == MAX_PARAMETERS {
            return Err(Refusal::too_many("parameters", MAX_PARAMETERS));
        }
        let kind = LoadParameter::named(&name)?;
        let value = string(value).map_err(|refusal| Refusal::parse(&name, &refusal))?;
        charge.add(value.len() as u64)?;
        told = match kind {
            LoadParameter::Config => told.with_config(value),
            LoadParameter::File(path) => {
                let bytes = STANDARD.decode(&*value).map_err(|_| Refusal::base64(&name))?;
                told.with_file(path, bytes)
            }
        };
    }
    Ok(told)
}

/// Checks the parameters of an unload. No model has others that were loaded along with it.
fn unload_parameters(text: &[u8]) -> Result<(), Refusal> {
    let dependents = parameters(text)?.and_then(|all| all.get("unload_dependents"));
    match dependents.map(|value| value.boolean()) {
        Some(None) => Err(Refusal::parse("unload_dependents", &Refusal::json_type("boolean"))),
        Some(Some(_)) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::budget::Budget;

    fn read(text: &str) -> Result<LoadParameters, String> {
        let charge = Arc::new(Budget::new(1 << 20)).charge();
        load_parameters(text.as_bytes(), &charge).map_err(|refusal| refusal.text().to_owned())
    }

    #[test]
    fn a_load_has_a_configuration_and_files() {
        let read_one = read(r#"{"parameters":{"config":"{\"a\":1}","file:1/m":"AAEC"},"x":[]}"#);
        let wanted =
            LoadParameters::new().with_config(r#"{"a":1}"#).with_file("1/m", vec![0, 1, 2]);
        assert_eq!(read_one, Ok(wanted));
        for empty in ["", "{}", r#"{"parameters":{}}"#] {
            assert_eq!(read(empty), Ok(LoadParameters::new()), "{empty}");
        }
    }

    #[test]
    fn what_is_no_parameter_of_a_load_is_refused() {
        for (text, wanted) in [
            (r#"{"parameters":{"a":"b"}}"#, "unrecognized load parameter 'a'."),
            (r#"{"parameters":{"file:a":"!"}}"#, "Unable to parse 'file:a': it is not base64"),
            (
                r#"{"parameters":{"config":1}}"#,
                "Unable to parse 'config': attempt to access JSON non-string as string",
            ),
            (
                r#"{"parameters":[]}"#,
                "Unable to parse 'parameters': attempt to access JSON non-object as object",
            ),
        ] {
            assert_eq!(read(text), Err(wanted.to_owned()));
        }
        let many: Vec<_> =
            (0..=MAX_PARAMETERS).map(|number| format!(r#""file:{number}":"""#)).collect();
        let text = format!(r#"{{"parameters":{{{}}}}}"#, many.join(","));
        assert_eq!(read(&text), Err("more than 1032 parameters".to_owned()));
        let long = format!(r#"{{"parameters":{{"file:a":"{}"}}}}"#, "A".repeat(2 << 20));
        assert!(read(&long).unwrap_err().starts_with("too many bytes are in flight"));
    }

    #[test]
    fn an_unload_takes_a_flag() {
        for right in ["", "{}", r#"{"parameters":{"unload_dependents":true,"x":1}}"#] {
            assert_eq!(unload_parameters(right.as_bytes()), Ok(()), "{right}");
        }
        let wrong = unload_parameters(br#"{"parameters":{"unload_dependents":1}}"#).unwrap_err();
        assert_eq!(
            wrong.text(),
            "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean"
        );
    }
}
