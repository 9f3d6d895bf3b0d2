//! The outcomes of executions that began together.

use crate::error::Result;

/// The outcome of the execution of each session of a model, with the session's index, which ascends.
///
/// # Examples
///
/// ```no_run
/// # use slipring::Context;
/// # use slipring::commit::Client;
/// # let client = Client::connect(&Context::new()?, "npu")?;
/// # let model = client.load(b"model")?;
/// for (session, outcome) in model.execute_all()? {
///     println!("session {session}: {outcome:?}");
/// }
/// model.execute_all()?.into_result()?; // the first failure is the error
/// # Ok::<(), slipring::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "an execution that failed is an outcome: into_result returns it"]
pub struct Outcomes {
    outcomes: Vec<(u32, Result<()>)>,
}

impl Outcomes {
    pub(super) fn new(outcomes: impl Iterator<Item = (u32, Result<()>)>) -> Self {
        Self { outcomes: outcomes.collect() }
    }

    /// Returns the error of the first session that failed, if one did.
    ///
    /// # Errors
    ///
    /// As for [`Session::execute`](crate::commit::Session::execute).
    pub fn into_result(self) -> Result<()> {
        self.outcomes.into_iter().try_for_each(|(_, outcome)| outcome)
    }

    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Returns false: something was executed.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Returns an iterator over the sessions' indexes and outcomes.
    pub fn iter(&self) -> std::slice::Iter<'_, (u32, Result<()>)> {
        self.outcomes.iter()
    }
}

impl IntoIterator for Outcomes {
    type Item = (u32, Result<()>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.outcomes.into_iter()
    }
}

impl<'a> IntoIterator for &'a Outcomes {
    type Item = &'a (u32, Result<()>);
    type IntoIter = std::slice::Iter<'a, (u32, Result<()>)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
