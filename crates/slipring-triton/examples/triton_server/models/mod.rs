//! The models that test suites of Triton clients expect.

mod arithmetic;
mod identity;
mod repeat;

use std::time::Duration;

use slipring::DType;
use slipring_triton::{DTYPES, FrontBuilder, Model};

use arithmetic::{Decimal, Simple};
use identity::Identity;
use repeat::Repeat;

/// The sleep of the slow model before it reads its input.
pub const SLEEP: Duration = Duration::from_millis(1500);

/// Returns all models of one response to a request.
pub fn all() -> Vec<Box<dyn Model>> {
    let mut all: Vec<Box<dyn Model>> = vec![
        Box::new(Simple::<i32>::new("simple")),
        Box::new(Simple::<i8>::new("simple_int8")),
        Box::new(Decimal::new("simple_string")),
        Box::new(Identity::new("simple_identity", 8, DType::Bytes, &[None], 1)),
        Box::new(Identity::new("identity_1d_fp32", 0, DType::Fp32, &[None], 1)),
        Box::new(Identity::new("identity_2d_fp32", 0, DType::Fp32, &[None, None], 1)),
        Box::new(Identity::new("identity_scalar_bytes", 0, DType::Bytes, &[Some(1)], 1)),
        Box::new(Identity::new("identity_multi_fp32", 8, DType::Fp32, &[None], 3)),
        Box::new(Identity::slow("identity_slow_int32", DType::Int32, SLEEP)),
    ];
    for dtype in DTYPES {
        let name = format!("identity_{}", dtype.name().to_lowercase());
        all.push(Box::new(Identity::new(&name, 8, dtype, &[None], 1)));
    }
    all
}

/// Returns the model of many responses to a request.
pub fn repeat() -> Repeat {
    Repeat::new("repeat_int32")
}

/// Adds all models.
pub fn add_all(builder: FrontBuilder) -> FrontBuilder {
    let builder = all().into_iter().fold(builder, |builder, model| builder.model(model));
    builder.decoupled_model(repeat())
}
