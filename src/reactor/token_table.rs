//! The functions of one link that its peer may trigger, by token. No I/O.
//!
//! ```text
//!   bit  0             16                31
//!        │ slot        │ generation      │
//! ```
//!
//! Each registration in a slot has its own generation, 1 to 65535. A slot whose generations are spent stays empty. So a
//! token names one registration for ever.

use crate::channel::Token;

/// The functions of one link, by token.
#[derive(Debug)]
pub(super) struct TokenTable<F> {
    slots: Vec<Slot<F>>,
    free: Vec<u16>,
}

#[derive(Debug)]
struct Slot<F> {
    /// The generation of the registered function, or of the next one.
    generation: u16,
    /// `None` while the slot is free or spent, or its function runs.
    function: Option<F>,
    registered: bool,
}

impl<F> Default for TokenTable<F> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<F> TokenTable<F> {
    /// Registers a function. Returns the function if 65536 slots are registered or spent.
    pub(super) fn register(&mut self, function: F) -> Result<Token, F> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let Ok(index) = u16::try_from(self.slots.len()) else { return Err(function) };
                self.slots.push(Slot { generation: 1, function: None, registered: false });
                index
            }
        };
        let slot = &mut self.slots[usize::from(index)];
        slot.function = Some(function);
        slot.registered = true;
        Ok(Token::from(u32::from(slot.generation) << 16 | u32::from(index)))
    }

    /// Removes a function. Returns it unless it runs, or `None` if the token names nothing.
    pub(super) fn unregister(&mut self, token: Token) -> Option<Option<F>> {
        let slot = self.slot(token)?;
        let function = slot.function.take();
        slot.registered = false;
        let spent = slot.generation == u16::MAX;
        slot.generation = slot.generation.wrapping_add(1);
        if !spent {
            self.free.push(u32::from(token) as u16);
        }
        Some(function)
    }

    /// Takes a function to run it and [put it back](Self::put_back). Returns `None` if the token names nothing.
    pub(super) fn take(&mut self, token: Token) -> Option<F> {
        self.slot(token)?.function.take()
    }

    /// Puts a function back after its run. Returns the function if it was unregistered meanwhile.
    pub(super) fn put_back(&mut self, token: Token, function: F) -> Option<F> {
        match self.slot(token) {
            Some(slot) => {
                slot.function = Some(function);
                None
            }
            None => Some(function),
        }
    }

    fn slot(&mut self, token: Token) -> Option<&mut Slot<F>> {
        let token = u32::from(token);
        let slot = self.slots.get_mut(usize::from(token as u16))?;
        (slot.registered && u32::from(slot.generation) == token >> 16).then_some(slot)
    }
}

#[cfg(test)]
mod tests;
