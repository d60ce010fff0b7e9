//! Every rule by itself, against a model of the maps in which a packet is looked up between any two writes; then random histories.

mod aged;
mod automatic;
mod bridged;
mod changing;
mod claimed;
mod cut_objects;
mod differing;
mod exempted;
mod failing;
mod following;
mod happening;
mod histories;
mod history;
mod limited;
mod mode;
mod model;
mod objects;
mod oracle;
mod ordered;
mod random;
mod replaced;
mod requested;
mod rig;
mod saved;
mod texts;
mod views;
