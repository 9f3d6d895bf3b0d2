//! The models that test suites of Triton clients expect.

mod arithmetic;
mod identity;

use std::time::Duration;

use slipring::DType;
use slipring_triton::{DTYPES, FrontBuilder};

use arithmetic::{Decimal, Simple};
use identity::Identity;

/// The sleep of the slow model before it reads its input.
pub const SLEEP: Duration = Duration::from_millis(1500);

/// Adds all models.
pub fn add_all(builder: FrontBuilder) -> FrontBuilder {
    let builder = builder
        .model(Simple::<i32>::new("simple"))
        .model(Simple::<i8>::new("simple_int8"))
        .model(Decimal::new("simple_string"))
        .model(Identity::new("simple_identity", 8, DType::Bytes, &[None], 1))
        .model(Identity::new("identity_1d_fp32", 0, DType::Fp32, &[None], 1))
        .model(Identity::new("identity_2d_fp32", 0, DType::Fp32, &[None, None], 1))
        .model(Identity::new("identity_scalar_bytes", 0, DType::Bytes, &[Some(1)], 1))
        .model(Identity::new("identity_multi_fp32", 8, DType::Fp32, &[None], 3))
        .model(Identity::slow("identity_slow_int32", DType::Int32, SLEEP));
    DTYPES.into_iter().fold(builder, |builder, dtype| {
        let name = format!("identity_{}", dtype.name().to_lowercase());
        builder.model(Identity::new(&name, 8, dtype, &[None], 1))
    })
}
