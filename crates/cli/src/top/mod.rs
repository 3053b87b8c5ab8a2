//! `lanefs top`: what a mount is doing, again and again. A [`Sample`](sample::Sample) is what its
//! socket says, a [`View`](view::View) two of them as text, and a [`Screen`](screen::Screen) the
//! terminal that shows it.

pub(crate) mod sample;
pub(crate) mod screen;
pub(crate) mod view;
