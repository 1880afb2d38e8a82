//! Values by number, as devices name buffers and plans. The number of one that was given back is used again.

/// Values by number.
#[derive(Debug)]
pub struct Slots<T>(Vec<Option<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Only a number that is in use is asked for.
const IN_USE: &str = "a buffer or plan in use has not been given back";

impl<T> Slots<T> {
    /// Keeps a value; returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(value);
        u32::try_from(index).expect("far fewer than 2^32 buffers or plans")
    }

    /// The value of a number.
    pub fn get(&self, number: u32) -> &T {
        self.0[number as usize].as_ref().expect(IN_USE)
    }

    /// The same, to change.
    pub fn get_mut(&mut self, number: u32) -> &mut T {
        self.0[number as usize].as_mut().expect(IN_USE)
    }

    /// Two different ones, to change.
    pub fn get_both(&mut self, numbers: [u32; 2]) -> [&mut T; 2] {
        let both = self.0.get_disjoint_mut(numbers.map(|number| number as usize)).expect(IN_USE);
        both.map(|value| value.as_mut().expect(IN_USE))
    }

    /// Gives a value back.
    pub fn remove(&mut self, number: u32) {
        self.0[number as usize] = None;
    }
}
