"""Explorer: manual flight through scenes in the browser, with recording of demonstrations."""
