//! `OUTPUT0` = `INPUT0` + `INPUT1`, `OUTPUT1` = `INPUT0` - `INPUT1`, of shape `[batch, 16]`.

use std::marker::PhantomData;

use slipring::DType;
use slipring::tensor::Element;
use slipring_triton::{Inputs, Model, ModelError, ModelMetadata, Outputs, TensorSpec};

fn metadata(name: &str, dtype: DType) -> ModelMetadata {
    let spec = |name| TensorSpec::new(name, dtype, [Some(16)]);
    ModelMetadata::new(name)
        .platform("slipring_arithmetic")
        .max_batch_size(8)
        .inline()
        .input(spec("INPUT0"))
        .input(spec("INPUT1"))
        .output(spec("OUTPUT0"))
        .output(spec("OUTPUT1"))
}

/// An element with modular addition and subtraction.
pub trait Wrapping: Element {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

impl Wrapping for i32 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

impl Wrapping for i8 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

/// The model on integers.
pub struct Simple<T> {
    metadata: ModelMetadata,
    element: PhantomData<T>,
}

impl<T: Wrapping> Simple<T> {
    pub fn new(name: &str) -> Self {
        Self { metadata: metadata(name, T::DTYPE), element: PhantomData }
    }
}

impl<T: Wrapping> Model for Simple<T> {
    fn metadata(&self) -> &ModelMetadata {
        &self.metadata
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        let (x, y) = (inputs.input("INPUT0")?, inputs.input("INPUT1")?);
        let shape = *x.shape();
        let (x, y) = (x.elements::<T>()?, y.elements::<T>()?);
        let pairs = || x.iter().zip(&*y);
        if outputs.is_requested("OUTPUT0") {
            let sums: Vec<T> = pairs().map(|(x, y)| x.plus(*y)).collect();
            outputs.output("OUTPUT0", shape)?.write(&sums)?;
        }
        if outputs.is_requested("OUTPUT1") {
            let differences: Vec<T> = pairs().map(|(x, y)| x.minus(*y)).collect();
            outputs.output("OUTPUT1", shape)?.write(&differences)?;
        }
        Ok(())
    }
}

/// The model on decimal numbers in strings.
pub struct Decimal(ModelMetadata);

impl Decimal {
    pub fn new(name: &str) -> Self {
        Self(metadata(name, DType::Bytes))
    }
}

impl Model for Decimal {
    fn metadata(&self) -> &ModelMetadata {
        &self.0
    }

    fn infer(&self, inputs: &Inputs, outputs: &mut Outputs) -> Result<(), ModelError> {
        let numbers = |name| {
            let strings = inputs.input(name)?.strings()?;
            let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<i32>().ok();
            let numbers: Option<Vec<i32>> = strings.iter().map(number).collect();
            numbers.ok_or_else(|| ModelError::invalid(format!("{name} is no decimal number")))
        };
        let (x, y) = (numbers("INPUT0")?, numbers("INPUT1")?);
        let shape = *inputs.input("INPUT0")?.shape();
        let both = |of: fn(i32, i32) -> i32| -> Vec<String> {
            x.iter().zip(&y).map(|(x, y)| of(*x, *y).to_string()).collect()
        };
        outputs.write_strings("OUTPUT0", shape, &both(i32::wrapping_add))?;
        outputs.write_strings("OUTPUT1", shape, &both(i32::wrapping_sub))
    }
}
