"""What a field of the resource may be: kinds, quantities, locations, and how they look in a schema."""
