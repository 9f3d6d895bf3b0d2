//! The parameters of a tensor and of a request, each of one of five types.

use std::collections::BTreeMap;

use crate::grpc::generated::inference::InferParameter;
use crate::grpc::generated::inference::infer_parameter::ParameterChoice;
use crate::refusal::Refusal;
use crate::request::{Parameter, RegionWindow};

const REGION: &str = "shared_memory_region";
const OFFSET: &str = "shared_memory_offset";
const SIZE: &str = "shared_memory_byte_size";
const CLASSIFICATION: &str = "classification";

/// The one reserved name that a client may send. It asks for an empty last response, if the model has not marked one.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

pub(super) type Parameters = BTreeMap<String, InferParameter>;

/// Returns the parameters for the model. Names that only the server may use are refused.
pub(super) fn of_request(parameters: Parameters) -> Result<BTreeMap<String, Parameter>, Refusal> {
    wants_empty_final(&parameters)?;
    let told = parameters.into_iter().filter(|(name, _)| name != EMPTY_FINAL);
    let told = told.map(|(name, parameter)| match parameter.parameter_choice {
        _ if name.starts_with("triton_") => Err(Refusal::reserved_parameter(&name)),
        Some(choice) => Ok(Some((name, value(choice)))),
        None => Ok(None),
    });
    told.filter_map(Result::transpose).collect()
}

/// Returns whether the client asks for an empty last response.
pub(super) fn wants_empty_final(parameters: &Parameters) -> Result<bool, Refusal> {
    match parameters.get(EMPTY_FINAL).map(choice) {
        None => Ok(false),
        Some(Some(ParameterChoice::BoolParam(wanted))) => Ok(*wanted),
        Some(_) => Err(Refusal::empty_final(EMPTY_FINAL)),
    }
}

fn value(choice: ParameterChoice) -> Parameter {
    match choice {
        ParameterChoice::BoolParam(value) => Parameter::Bool(value),
        ParameterChoice::Int64Param(value) => Parameter::Int(value),
        ParameterChoice::Uint64Param(value) => Parameter::Uint(value),
        ParameterChoice::DoubleParam(value) => Parameter::Double(value),
        ParameterChoice::StringParam(value) => Parameter::Text(value),
    }
}

/// Returns the window of a tensor in shared memory, if it has one.
pub(super) fn window(
    tensor: &str,
    parameters: &Parameters,
) -> Result<Option<RegionWindow>, Refusal> {
    // Most tensors have no parameters.
    if parameters.is_empty() {
        return Ok(None);
    }
    let region = match parameters.get(REGION).map(choice) {
        None => None,
        Some(Some(ParameterChoice::StringParam(name))) => Some(name),
        Some(_) => return Err(Refusal::parameter_unlike(REGION, tensor, "string_param")),
    };
    let offset = integer(tensor, parameters, OFFSET)?;
    let size = integer(tensor, parameters, SIZE)?;
    let Some(region) = region else {
        return match (size, offset) {
            (Some(_), _) => Err(Refusal::window_without_region(SIZE, tensor)),
            (None, Some(_)) => Err(Refusal::window_without_region(OFFSET, tensor)),
            (None, None) => Ok(None),
        };
    };
    let size = size.ok_or_else(|| Refusal::window_incomplete(tensor))?;
    // A negative offset lies outside of every region. Cast to unsigned it could wrap.
    let offset = u64::try_from(offset.unwrap_or(0)).map_err(|_| Refusal::region_offset(region))?;
    let len = u64::try_from(size).map_err(|_| Refusal::region_range(region))?;
    Ok(Some(RegionWindow { name: region.clone(), offset, len }))
}

/// Returns the number of classes that a client asks for.
pub(super) fn classification(parameters: &Parameters) -> Result<Option<usize>, Refusal> {
    match parameters.get(CLASSIFICATION).map(choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::Int64Param(count @ 1..))) => {
            Ok(Some(usize::try_from(*count).unwrap_or(usize::MAX)))
        }
        Some(Some(ParameterChoice::Int64Param(_))) => Err(Refusal::classification_count()),
        Some(_) => Err(Refusal::classification_parameter()),
    }
}

fn choice(parameter: &InferParameter) -> Option<&ParameterChoice> {
    parameter.parameter_choice.as_ref()
}

fn integer(tensor: &str, parameters: &Parameters, name: &str) -> Result<Option<i64>, Refusal> {
    match parameters.get(name).map(choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::Int64Param(value))) => Ok(Some(*value)),
        Some(_) => Err(Refusal::parameter_unlike(name, tensor, "int64_param")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(values: &[(&str, ParameterChoice)]) -> Parameters {
        let parameter =
            |choice: &ParameterChoice| InferParameter { parameter_choice: Some(choice.clone()) };
        values.iter().map(|(name, choice)| ((*name).to_owned(), parameter(choice))).collect()
    }

    fn text(name: &str) -> (&str, ParameterChoice) {
        (REGION, ParameterChoice::StringParam(name.to_owned()))
    }

    #[test]
    fn a_window_has_a_region_and_a_size_and_starts_at_its_beginning() {
        let given = parameters(&[text("r"), (SIZE, ParameterChoice::Int64Param(i64::MAX))]);
        let wanted = RegionWindow { name: "r".to_owned(), offset: 0, len: i64::MAX as u64 };
        assert_eq!(window("t", &given), Ok(Some(wanted)));
        assert_eq!(window("t", &Parameters::new()), Ok(None));
    }

    #[test]
    fn negative_numbers_are_refused_and_never_wrap() {
        for (offset, size) in [(-1, 64), (64, -32), (i64::MIN, i64::MIN), (0, -1)] {
            let offset = (OFFSET, ParameterChoice::Int64Param(offset));
            let size = (SIZE, ParameterChoice::Int64Param(size));
            let refusal = window("t", &parameters(&[text("r"), offset, size])).unwrap_err();
            assert!(refusal.text().starts_with("Invalid offset"), "{refusal}");
        }
    }

    #[test]
    fn one_reserved_name_may_be_sent() {
        let yes = ParameterChoice::BoolParam(true);
        let told =
            of_request(parameters(&[(EMPTY_FINAL, yes.clone()), ("t", yes.clone())])).unwrap();
        assert_eq!(told, BTreeMap::from([("t".to_owned(), Parameter::Bool(true))]));
        assert!(of_request(parameters(&[("triton_", yes)])).is_err());
        let number = parameters(&[(EMPTY_FINAL, ParameterChoice::Int64Param(1))]);
        let text = "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.";
        assert_eq!(of_request(number).unwrap_err().text(), text);
    }
}
