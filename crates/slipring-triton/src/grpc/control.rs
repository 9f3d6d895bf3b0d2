//! The parameters of loads and unloads.

use std::collections::BTreeMap;

use crate::grpc::generated::inference::ModelRepositoryParameter;
use crate::grpc::generated::inference::model_repository_parameter::ParameterChoice;
use crate::load_parameters::{LoadParameter, LoadParameters};
use crate::refusal::Refusal;

const UNLOAD_DEPENDENTS: &str = "unload_dependents";

type Parameters = BTreeMap<String, ModelRepositoryParameter>;

/// Returns the parameters of a load. The bytes of files are slices of the message.
pub(super) fn load_parameters(parameters: Parameters) -> Result<LoadParameters, Refusal> {
    let none = LoadParameters::new();
    parameters.into_iter().try_fold(none, |all, (name, parameter)| {
        match (LoadParameter::named(&name)?, parameter.parameter_choice) {
            (LoadParameter::Config, Some(ParameterChoice::StringParam(config))) => {
                Ok(all.with_config(config))
            }
            (LoadParameter::Config, _) => {
                Err(Refusal::load_parameter_unlike(&name, "string_param"))
            }
            (LoadParameter::File(path), Some(ParameterChoice::BytesParam(bytes))) => {
                Ok(all.with_file(path, bytes))
            }
            (LoadParameter::File(_), _) => {
                Err(Refusal::load_parameter_unlike(&name, "bytes_param"))
            }
        }
    })
}

/// Checks the parameters of an unload. No model has others that were loaded along with it.
pub(super) fn check_unload(parameters: &Parameters) -> Result<(), Refusal> {
    match parameters.get(UNLOAD_DEPENDENTS).map(|parameter| &parameter.parameter_choice) {
        None | Some(Some(ParameterChoice::BoolParam(_))) => Ok(()),
        Some(_) => Err(Refusal::unload_dependents()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(name: &str, choice: ParameterChoice) -> Parameters {
        let parameter = ModelRepositoryParameter { parameter_choice: Some(choice) };
        BTreeMap::from([(name.to_owned(), parameter)])
    }

    #[test]
    fn each_parameter_has_its_type() {
        let text = || ParameterChoice::StringParam("{}".to_owned());
        let bytes = || ParameterChoice::BytesParam(vec![0, 255].into());
        let config = load_parameters(parameters("config", text()));
        assert_eq!(config, Ok(LoadParameters::new().with_config("{}")));
        let file = load_parameters(parameters("file:a/b", bytes()));
        assert_eq!(file, Ok(LoadParameters::new().with_file("a/b", vec![0, 255])));
        let refused = |name, choice| load_parameters(parameters(name, choice)).unwrap_err();
        let wanted = "invalid value type for load parameter 'config', expected string_param.";
        assert_eq!(refused("config", bytes()).text(), wanted);
        let wanted = "invalid value type for load parameter 'file:a', expected bytes_param.";
        assert_eq!(refused("file:a", text()).text(), wanted);
        assert_eq!(refused("files", bytes()).text(), "unrecognized load parameter 'files'.");
    }

    #[test]
    fn an_unload_takes_a_flag() {
        let given = |choice| check_unload(&parameters(UNLOAD_DEPENDENTS, choice));
        assert_eq!(given(ParameterChoice::BoolParam(true)), Ok(()));
        assert_eq!(check_unload(&Parameters::new()), Ok(()));
        let wanted = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
        assert_eq!(given(ParameterChoice::Int64Param(1)).unwrap_err().text(), wanted);
    }
}
